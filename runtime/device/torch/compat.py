"""All that is asked of private APIs of torch: for a new version, look here."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def is_plain(*arrays: Tensor) -> bool:
    """Return whether all are ordinary memory that kernels may read: nothing is traced, fake or wrapped."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
        and all(type(x) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(x) for x in arrays)
    )


def is_traced() -> bool:
    """Return whether `torch.jit.trace` is at work."""
    return torch._C._get_tracing_state() is not None


def has_no_values(x: Tensor) -> bool:
    """Return whether the values of a tensor cannot be read: it is on the meta device, fake, or wrapped by functorch."""
    return x.is_meta or isinstance(x, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(x)


def wants_derivative(x: Tensor) -> bool:
    """Return whether a derivative may be asked of an operation on a tensor, backward or forward."""
    backward = x.requires_grad and torch.is_grad_enabled()
    forward = torch.autograd.forward_ad._current_level >= 0
    return backward or forward


def is_as_stored(x: Tensor) -> bool:
    """Return whether a tensor's numbers are those that lie in its memory: it is no lazy negation and no lazy zero."""
    return not (x.is_neg() or x._is_zerotensor())


def has_openmp() -> bool:
    """Return whether torch was built with OpenMP."""
    return torch._C.has_openmp


def is_rocm() -> bool:
    """Return whether this torch is for AMD's GPUs, which it calls CUDA devices too."""
    return torch.version.hip is not None
