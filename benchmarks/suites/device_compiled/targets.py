"""The devices that steps are compiled for, none of which is needed."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # arrays lie on the host
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # there is no driver whose version could be asked for
    "TPU_SKIP_MDS_QUERY": "1",  # this is no machine in a cloud
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is opened, so that several processes may compile
}
"""What the compilers ask of the environment of their process, before it imports JAX."""

UNWANTED = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "LIBTPU_INIT_ARGS", "XLA_FLAGS")
"""Settings that would change what is compiled."""


@dataclass(frozen=True)
class Target:
    """A device, as its compiler knows it. bandwidth: bytes a second of its large memory."""

    name: str
    platform: str  # as `lower` names it
    bandwidth: float

    @functools.cached_property
    def device(self) -> Any:
        """The device, from a topology. Raises RuntimeError where its compiler is not installed."""
        from jax.experimental import topologies

        if self.platform == "tpu":
            found = topologies.get_topology_desc(platform="tpu", topology_name=f"{self.name}:2x2")
        else:
            config = (Path(__file__).parent / f"{self.name}.txtpb").read_text()
            found = topologies.get_topology_desc(
                platform=self.platform, topology_name=self.name, target_config=config, topology="1x1x1"
            )
        return found.devices[0]

    def compile(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return a function compiled for this device, given the shapes of its arguments."""
        import jax
        from jax.sharding import SingleDeviceSharding

        here = SingleDeviceSharding(self.device)
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), arguments)
        return jax.jit(function).trace(*placed).lower(lowering_platforms=(self.platform,)).compile()


TARGETS = {
    target.name: target
    for target in (
        Target("v5e", "tpu", 0.82e12),
        Target("v6e", "tpu", 1.64e12),
        Target("h100", "cuda", 3.35e12),
    )
}
"""Devices by name. Bandwidths are those of JAX's `tpu_info` and of NVIDIA's data sheet of the H100 SXM."""


def prepare(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a process that compiles for these devices."""
    kept = {name: text for name, text in environment.items() if name not in UNWANTED}
    kept |= ENVIRONMENT
    nvcc = _nvcc()
    return (
        kept
        if nvcc is None
        else kept | {"CUDA_DATA_DIR": str(nvcc), "PATH": f"{nvcc / 'bin'}{os.pathsep}{kept['PATH']}"}
    )


def _nvcc() -> Path | None:
    """Return the folder of NVIDIA's assembler, None where its package is not installed."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) / "cuda_nvcc" for place in (found.submodule_search_locations or ())] if found else []
    return next((folder for folder in folders if folder.is_dir()), None)
