"""Beam search of transformers over one shared key-value cache: the prompt once, every token of every branch once.

After "Efficient Beam Search for Large Language Models Using Trie-Based Decoding" (arXiv 2502.00085). Which beams go on
is decided by transformers itself, so that all options mean what they do there; what is done here is the model's part.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from ...errors import MissingDependencyError

try:
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicCache, DynamicLayer
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError:
    raise MissingDependencyError(
        "this module needs transformers, 5 or later: pip install 'maskwright[transformers]'"
    ) from None


from . import compat
from .compat import Model

if TYPE_CHECKING:
    from transformers import (
        PretrainedConfig,
        PreTrainedModel,
    )


# what models take and return their keys and values as: by its second name up to transformers 5.23
CACHE = next(name for name in ("cache", "past_key_values") if name in CausalLMOutputWithPast.__dataclass_fields__)
_HONOURS_MASKS = ("sdpa", "eager")
_REFUSED = (
    "output_attentions", "output_hidden_states", "inputs_embeds", "cache", "past_key_values", "cache_implementation",
    "assistant_model", "prompt_lookup_num_tokens", "low_memory", "token_type_ids",
)  # fmt: skip


class CacheEntries(NamedTuple):
    """How many positions of keys and values were held at most, in each layer, over all inputs of a batch."""

    tree: int  # in the shared cache
    copies: int  # in beam search with a cache for each beam, after as many steps
    live: int  # of one input in the shared cache, besides its prompt, right after a collection


class TreeBeams(NamedTuple):
    """What beam search over a shared cache found: the same as `generate`, and what it took."""

    sequences: Tensor  # (B * num_return_sequences, P + T), prompts and padding as `generate` has them
    scores: Tensor | None  # (B * num_return_sequences,), best first; None without beams, where there are none
    entries: CacheEntries


def tree_beam_search(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    beams: int,
    max_new_tokens: int,
    collect: int = 8,
    **options: Any,
) -> TreeBeams:
    """Return what `model.generate(num_beams=beams)` returns, with one cache for all beams of an input.

    The beams of an input lie behind each other in the sequence. A mask lets each token see the prompt and its own
    ancestors, and its position is its depth, so that the model computes what it would for each beam alone.

    model: a causal model of transformers with attention over all that came before, by "sdpa" or "eager".
    input_ids: (B, P), prompts padded on the left; attention_mask: (B, P), 0 at the padding. collect: after so many
    steps keys and values of branches that were given up are removed; the result does not depend on it.
    options: what `generate` takes. A table or sorted matrix comes as there, in
    `logits_processor=[ConstraintLogitsProcessor(table)]` or `custom_generate=constrained_generate, tables=table`.
    Sampling works as well, with seeds giving the same.

    Raises TypeError for what is no model of transformers; ValueError for a model that cannot be told what a token sees,
    for options about single beams' caches, and for prompts that are not padded on the left.
    """
    check_model(model, "search over a shared cache", "model.generate(num_beams=..) can")
    _check_options(input_ids, attention_mask, beams, max_new_tokens, collect, options)
    tree = TreeCache(model.config, input_ids.shape[0], input_ids.shape[1], collect)
    scores: list[Tensor] = []
    out = _over_tree(model, tree, scores).generate(
        input_ids,
        attention_mask=attention_mask,
        num_beams=beams,
        max_new_tokens=max_new_tokens,
        **{**options, CACHE: tree, "return_dict_in_generate": True, "use_cache": True},
    )
    found = out.get("sequences_scores")
    if found is None and scores:  # `generate` tells them only together with those of all tokens, (B * beams, V) a step
        each = out.sequences.shape[0] // input_ids.shape[0]
        found = scores[-1][:, :each].reshape(-1)
    return TreeBeams(out.sequences, found, tree.entries)


# --------------------------------------------------------------------------------------------------- the cache


class TreeCache(DynamicCache):
    """The keys and values of a tree of tokens for each of `batch` inputs: P columns of a prompt, then W of branches.

    `visible` (B * M, W) says which columns are the ancestors of each beam, itself among them. A step adds a column for
    each beam. What is live is the union of an input's rows, so that no pointers need be followed to collect the rest.
    An input with fewer live columns than another keeps some that nothing sees.

    Buffers with room for the steps until the next collection were tried. They hold more, and with 8 steps from one to
    the next they save 1 to 4 % of the time that concatenating takes (on a CPU, prompt of 2,048 tokens).
    """

    def __init__(self, config: PretrainedConfig, batch: int, prompt: int, collect: int) -> None:
        super().__init__(config=config)
        self.batch = batch
        self.prompt = prompt  # P
        self.visible = torch.empty(0, 0, dtype=torch.bool)
        self._collect = collect
        self._steps = self._since = 0  # taken, and those since the last collection
        self._most = prompt  # columns at any time
        self._live = 0

    @property
    def entries(self) -> CacheEntries:
        """What was held so far."""
        rows = self.visible.shape[0]
        return CacheEntries(self.batch * self._most, rows * (self.prompt + self._steps), self._live)

    def plant(self, rows: int, device: torch.device) -> None:
        """Begin a tree for `rows` beams over all inputs, with no column yet."""
        self.visible = torch.zeros(rows, 0, dtype=torch.bool, device=device)

    def grow(self) -> Tensor:
        """Add a column for a token of each beam, which the model's next pass fills, and return `visible`."""
        if self._since == self._collect:
            self._remove_dead()
        rows, width = self.visible.shape
        each = rows // self.batch
        own = torch.eye(each, dtype=torch.bool, device=self.visible.device).repeat(self.batch, 1)
        self.visible = torch.cat([self.visible, own], dim=1)
        self._steps += 1
        self._since += 1
        self._most = max(self._most, self.prompt + width + each)
        return self.visible

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let each beam go on from beam beam_idx (B * M,); keys and values stay where they are."""
        self.visible = self.visible.index_select(0, beam_idx.to(self.visible.device))

    def _remove_dead(self) -> None:
        """Keep the prompt's columns and those that some beam sees, in their order."""
        by_input = self.visible.view(self.batch, -1, self.visible.shape[1])
        live = by_input.any(dim=1)
        most = int(live.sum(dim=1).max())
        if most < live.shape[1]:
            index = live.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
            self.visible = by_input.gather(2, index[:, None].expand(-1, by_input.shape[1], -1)).flatten(0, 1)
            for layer in cast(list[Any], self.layers):
                layer.keys = self._kept(layer.keys, index)
                layer.values = self._kept(layer.values, index)
        self._live = max(self._live, most)
        self._since = 0

    def _kept(self, array: Tensor, index: Tensor) -> Tensor:
        """Return of keys or values (B, H, P + W, D) the prompt's, and those behind it at index (B, w)."""
        columns = index.to(array.device)[:, None, :, None].expand(-1, array.shape[1], -1, array.shape[3])
        return torch.cat([array[:, :, : self.prompt], array[:, :, self.prompt :].gather(2, columns)], dim=2)


# --------------------------------------------------------------------------------------------------- the model


def _over_tree(model: Model, tree: TreeCache, scores: list[Tensor]) -> Any:
    """Return a model with the same weights whose `forward` takes a row for each beam and computes them as a tree.

    `scores` receives those of the best sequences, (B, M), at each step.
    """
    out = copy.copy(model)  # shares all parameters and modules
    for name in ("_forward_hooks", "_forward_pre_hooks"):  # those of the model run when it is called, once
        setattr(out, name, OrderedDict())

    def run(tokens: Tensor, seen: Tensor | None, positions: Tensor, **kwargs: Any) -> Tensor:
        kwargs[CACHE] = tree
        logits: Tensor = model(input_ids=tokens, attention_mask=seen, position_ids=positions, **kwargs).logits
        return logits

    def forward(
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if input_ids is None or position_ids is None or kwargs.pop(CACHE, None) is not tree:
            raise ValueError("tree_beam_search needs token ids, positions and its own cache at every step")
        rows = input_ids.shape[0]
        each = rows // tree.batch
        if tree.get_seq_length() < tree.prompt:
            if not len(tree.visible):
                tree.plant(rows, input_ids.device)
            seen = None if attention_mask is None else attention_mask[::each]
            of_input = run(input_ids[::each], seen, position_ids[::each], **kwargs)  # all beams are one still
            logits = of_input[:, -1:].repeat_interleave(each, dim=0)
        elif input_ids.shape[1] == 1:
            kwargs.pop("logits_to_keep", None)  # those of all beams are wanted
            seen = grown_mask(tree, None if attention_mask is None else attention_mask[::each], model.dtype)
            logits = run(input_ids.view(-1, each), seen, position_ids.reshape(-1, each), **kwargs).view(rows, 1, -1)
        else:
            raise ValueError("tree_beam_search takes one token a step: leave out assisted decoding and the like")
        held: dict[str, Any] = {CACHE: tree}
        return CausalLMOutputWithPast(logits=logits, **held)

    def update_finished(*args: Any, **kwargs: Any) -> Any:
        updated = model._update_finished_beams(*args, **kwargs)
        scores.append(updated[1])
        return updated

    forward.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]  # `generate` looks at it
    out.forward = forward
    out._update_finished_beams = update_finished
    return out


def grown_mask(tree: TreeCache, prompts: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Add a column for each beam, and return what is added to its scores (B, 1, M, S): 0 where it sees, or the least.

    prompts: (B, P or more), 0 at the padding; None: there is none.
    """
    visible = tree.grow()
    visible = visible.view(tree.batch, 1, -1, visible.shape[1])
    before = visible.new_ones(tree.batch, tree.prompt) if prompts is None else prompts[:, : tree.prompt]
    before = before[:, None, None].to(visible.device, torch.bool).expand(-1, -1, visible.shape[2], -1)
    return penalty(torch.cat([before, visible], dim=3), dtype)


def penalty(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores: 0 where a token sees, else the least there is."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


# --------------------------------------------------------------------------------------------------- refusals


def check_model(model: object, task: str, instead: str) -> None:
    """Raise TypeError or ValueError for a model that cannot be told, token by token, what it sees and where it is.

    task, instead: what it is needed for, and what can be done without.
    """
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise TypeError(
            f"a causal language model of transformers is needed, not a {name}: unwrap one that is wrapped, as by PEFT"
        )
    config = model.config
    takes = inspect.signature(model.forward).parameters
    own_kinds = {type(layer).__name__ for layer in DynamicCache(config=config).layers} - {DynamicLayer.__name__}
    why = None
    if config.is_encoder_decoder:
        why = "it is an encoder-decoder, whose decoder also attends to an encoder by beam"
    elif config.get_text_config(decoder=True) is not config:
        why = "it reads more than text, and its positions have several axes: take its language model alone"
    elif compat.keeps_state_apart(model):
        why = "it has a state of its own kind for each beam, not keys and values that a mask could hide"
    elif own_kinds:
        why = (
            f"its cache has layers of other kinds ({', '.join(sorted(own_kinds))}), as sliding windows and recurrent "
            "state need, that go by place and not by depth"
        )
    elif "local" in (getattr(config, "attention_layers", None) or ()):
        why = "some of its layers attend to a window that goes by place and not by depth"
    elif getattr(config, "keep_window_size", None) is not None:
        why = "it picks what to attend to by itself, beyond what a mask says"
    elif kinds := changing_rope(config):
        why = (
            f"its rotary embedding ({', '.join(sorted(kinds))}) changes with the length of the longest text in a batch"
        )
    elif CACHE not in takes:
        why = f"it takes no {CACHE!r}, the keys and values that transformers keeps"
    elif "position_ids" not in takes or getattr(config, "alibi", False):
        why = "it takes positions from the order of its tokens (ALiBi, for one), where siblings stand side by side"
    elif config._attn_implementation not in _HONOURS_MASKS:
        why = (
            f"its attention, {config._attn_implementation!r}, takes no mask of (B, 1, queries, keys): "
            f"load it with attn_implementation={_HONOURS_MASKS[0]!r}"
        )
    if why is not None:
        raise ValueError(f"{name} cannot {task}: {why}. {instead}")


def changing_rope(config: object) -> set[str]:
    """Return the kinds of rotary embedding of any layer that change with the longest text of a batch."""
    found = set()
    for name in ("rope_parameters", "rope_scaling"):
        given = getattr(config, name, None) or {}
        for each in (given, *(value for value in given.values() if isinstance(value, dict))):
            found |= {each[key] for key in ("rope_type", "type") if isinstance(each.get(key), str)}
    return found & {"longrope", "dynamic"}


def _check_options(
    input_ids: Tensor, mask: Tensor | None, beams: int, max_new_tokens: int, collect: int, options: dict[str, Any]
) -> None:
    """Raise ValueError for what could not be done as `generate` does it."""
    for name, value in (("beams", beams), ("max_new_tokens", max_new_tokens), ("collect", collect)):
        if value < 1:
            raise ValueError(f"{name} must be positive, not {value}")
    if input_ids.ndim != 2 or not input_ids.numel():
        raise ValueError(f"input_ids must be (B, P) with at least one token, not {tuple(input_ids.shape)}")
    if mask is not None and mask.shape != input_ids.shape:
        raise ValueError(f"attention_mask is {tuple(mask.shape)}, input_ids {tuple(input_ids.shape)}: they must agree")
    if mask is not None and not bool((mask[:, -1] != 0).all()):
        raise ValueError("prompts must be padded on the left: padding_side='left' of the tokenizer")
    refused = [name for name in _REFUSED if options.get(name) is not None and options.get(name) is not False]
    refused += ["use_cache=False"] if options.get("use_cache") is False else []
    if refused:
        raise ValueError(f"tree_beam_search does without {', '.join(refused)}: leave it out, or use model.generate")
    if "num_beams" in options:
        raise ValueError("num_beams is called beams here")
