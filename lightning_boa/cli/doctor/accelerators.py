"""The devices that torch drives, each with what tells it from the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning_boa.cli.doctor.facts import Accelerators, Device

NATIVE_BF16 = 8


def read_accelerators(torch: Any) -> Accelerators:
    """What `torch`, the module, finds; an error of its driver is told, not raised."""
    try:
        if torch.cuda.is_available():
            return _of_cuda(torch)
        if hasattr(torch, "xpu") and torch.xpu.is_available():
            return Accelerators("XPU", tuple(_of_xpu(torch)))
        if torch.backends.mps.is_available():
            return Accelerators("MPS", (Device(0, "mps", "Apple GPU"),))
        other = getattr(torch, "accelerator", None)
        if other is not None and other.is_available():
            kind = other.current_accelerator().type
            devices = tuple(Device(i, kind, f"{kind}:{i}") for i in range(other.device_count()))
            return Accelerators(kind, devices)
    except Exception as error:
        return Accelerators(error=f"{type(error).__name__}: {_first_line(error)}")
    return Accelerators()


def read_device(torch: Any, local_rank: int) -> Device | None:
    """The device of a rank; None where ranks compute on the processor.

    Where a launcher shows each rank its own device alone that is the first one; where there are more ranks than devices
    some share one.
    """
    devices = read_accelerators(torch).devices
    return devices[local_rank % len(devices)] if devices else None


def _of_cuda(torch: Any) -> Accelerators:
    count = range(torch.cuda.device_count())
    is_rocm = torch.version.hip is not None
    return Accelerators(
        "ROCm" if is_rocm else "CUDA",
        tuple(_cuda_device(torch, index, is_rocm) for index in count),
        () if is_rocm else tuple(torch.cuda.get_arch_list()),
        tuple(
            tuple(i == j or bool(torch.cuda.can_device_access_peer(i, j)) for j in count)
            for i in count
        ),
    )


def _cuda_device(torch: Any, index: int, is_rocm: bool) -> Device:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))
    return Device(
        index=index,
        kind="cuda",
        name=properties.name,
        uuid=uuid if not uuid or is_rocm or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        memory_bytes=properties.total_memory,
        capability=(
            properties.gcnArchName if is_rocm else f"{properties.major}.{properties.minor}"
        ),
        pci_bus_id=_pci_bus_id(properties),
        bf16=None if is_rocm else properties.major >= NATIVE_BF16,
    )


def _pci_bus_id(properties: Any) -> str:
    """As nvidia-smi writes it; "" where torch is too old to say."""
    if not hasattr(properties, "pci_bus_id"):
        return ""
    domain, bus = properties.pci_domain_id, properties.pci_bus_id
    return f"{domain:08x}:{bus:02x}:{properties.pci_device_id:02x}.0"


def _of_xpu(torch: Any) -> Iterator[Device]:
    for index in range(torch.xpu.device_count()):
        properties = torch.xpu.get_device_properties(index)
        yield Device(
            index,
            "xpu",
            properties.name,
            str(getattr(properties, "uuid", "")),
            properties.total_memory,
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
