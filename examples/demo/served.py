"""The demo's model and catalogue behind `POST /v1/retrieve`: three requests, and their answers."""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskwright.compile.catalogue import Catalogue as ItemCatalogue
from maskwright.runtime.integrations.item_search import ItemSearch
from maskwright.serve.items.models import ItemModel
from maskwright.serve.items.routes import create_app
from maskwright.serve.items.service import ItemService
from maskwright.serve.items.shop import Shop
from maskwright.serve.server import Server
from maskwright.serve.settings import Access, CatalogueSettings, ItemSettings

from .dataset import Catalogue, Ints
from .model import START, Transformer, tokens_of

_PATIENCE = 60.0  # seconds until the server must be there


@dataclass(frozen=True)
class Call:
    """A request, as curl sends it, and the titles of the items that it found, or what else was answered."""

    method: str
    path: str
    body: dict[str, Any] | None
    answer: dict[str, Any]

    @property
    def command(self) -> str:
        """The request as a command."""
        method = "" if self.method == "POST" else f" -X {self.method}"
        body = "" if self.body is None else f" -H 'Content-Type: application/json' -d '{json.dumps(self.body)}'"
        return f"curl localhost:8000{self.path}{method}{body}"


def for_transformers(network: Transformer, levels: int) -> Any:
    """Return the network as a model of transformers, which gives the same logits.

    A token of level t, where t = 0 asks for an item, is t * V + token there, as transformers has one embedding.
    """
    import transformers

    config, size = network.config, network.vocab_size

    class OfLevels(transformers.GPTNeoXForCausalLM):  # type: ignore[no-untyped-call]
        """A model that gives tokens of the next level alone a probability."""

        def forward(self, input_ids: Tensor, **options: Any) -> Any:
            out = super().forward(input_ids=input_ids, **options)
            last = input_ids[:, -out.logits.shape[1] :] // size
            level = torch.arange(out.logits.shape[2]) // size
            out.logits = out.logits.masked_fill(level != ((last + 1) % (levels + 1))[..., None], -torch.inf)
            return out

    sizes: dict[str, Any] = {
        "hidden_size": config.width, "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "intermediate_size": 4 * config.width, "hidden_act": "gelu", "rotary_pct": 1.0, "attention_bias": False,
        "use_parallel_residual": False, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
        "max_position_embeddings": (levels + 1) * (config.history + 2),
    }  # fmt: skip
    made: Any = OfLevels(transformers.GPTNeoXConfig(vocab_size=(levels + 1) * size, **sizes))
    made.eval()
    with torch.no_grad():
        embedding = network.embedding.flatten(0, 1)
        made.gpt_neox.embed_in.weight.copy_(embedding)
        made.get_output_embeddings().weight.copy_(embedding / config.width**0.5)
        made.gpt_neox.final_layer_norm.load_state_dict(network.norm.state_dict())
        layers: list[Any] = list(network.layers)
        for layer, own in zip(made.gpt_neox.layers, layers, strict=True):
            qkv = own.qkv.weight.view(3, config.heads, -1, config.width)  # which transformers has head by head
            layer.attention.query_key_value.weight.copy_(qkv.transpose(0, 1).reshape(-1, config.width))
            layer.attention.dense.load_state_dict(own.merge.state_dict())
            layer.input_layernorm.load_state_dict(own.before_attention.state_dict())
            layer.post_attention_layernorm.load_state_dict(own.before_mlp.state_dict())
            layer.mlp.dense_h_to_4h.load_state_dict(own.mlp[0].state_dict())
            layer.mlp.dense_4h_to_h.load_state_dict(own.mlp[2].state_dict())
    return made


def calls(network: Transformer, catalogue: Catalogue, history: Ints, beams: int) -> tuple[Call, ...]:
    """Serve the network, and return three requests with their answers: a search, its best item sold out, a search."""
    size, levels = network.vocab_size, catalogue.length
    tokens = tokens_of(np.zeros(1, np.int64))[0]
    offsets = [int(tokens) + size * (level + 1) for level in range(levels)]
    items = ItemCatalogue.of(
        catalogue.sids, np.arange(len(catalogue.sids)), size * (levels + 1), offsets=offsets, kind="matrix",
        columns={"title": list(catalogue.titles)},
    )  # fmt: skip
    model = ItemModel(
        ItemSearch(for_transformers(network, levels)), "demo", size * (levels + 1), None, None, between=[START],
        begin=[START], end=[START],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "items.catalogue"
        items.save(file)
        shop = Shop(CatalogueSettings("items", file, Path(folder) / "items.log"))
        service = ItemService([model], [shop], ItemSettings())
        server = Server(create_app(service), service, Access(port=0))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            until = time.monotonic() + _PATIENCE
            while not (server.started and service.ready):
                if service.fault or not thread.is_alive() or time.monotonic() > until:
                    raise RuntimeError(f"the server did not start: {service.fault}")
                time.sleep(0.02)
            address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            kept = history[-network.config.history :].tolist()
            question = {"history": kept, "beams": beams, "limit": 3, "columns": ["title"]}
            first = _call(address, "POST", "/v1/retrieve", question)
            best = first.answer["items"][0]["id"]
            gone = _call(address, "DELETE", f"/v1/catalogues/items/items/{best}", None)
            return first, gone, _call(address, "POST", "/v1/retrieve", question)
        finally:
            server.should_exit = True
            thread.join()
            shop.close()


def _call(address: str, method: str, path: str, body: dict[str, Any] | None) -> Call:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        address + path, data=data, method=method, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
        return Call(method, path, body, json.load(answer))
