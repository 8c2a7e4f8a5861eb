"""Reads what nvidia-smi says of the cards; an answer that is missing, late or garbled is told, never raised."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from lightning_boa.cli.doctor.facts import Card, Cards, Process

SECONDS = 10.0
_THROTTLING = {
    "hw_thermal_slowdown": "heat (hardware)",
    "sw_thermal_slowdown": "heat (driver)",
    "hw_power_brake_slowdown": "the power supply",
    "hw_slowdown": "the hardware (heat or power)",
    "sw_power_cap": "its power limit",
}
_COMPUTES = ("C", "C+G")

Ask = Callable[..., str]


class NoAnswerError(Exception):
    """The program is there but gave no usable answer."""


def ask_nvidia_smi(*arguments: str) -> str:
    """What nvidia-smi prints; it gets ten seconds.

    Raises:
        FileNotFoundError: there is no nvidia-smi.
        NoAnswerError: it failed or took too long.
    """
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"nvidia-smi gave no answer within {SECONDS:g} s") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NoAnswerError(f"nvidia-smi cannot be run ({error.strerror or error})") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().partition("\n")[0]
        raise NoAnswerError(f"nvidia-smi failed with exit code {done.returncode}: {said}")
    return done.stdout


def read_cards(ask: Ask = ask_nvidia_smi) -> Cards:
    """The cards and how they are linked; without any where there is no nvidia-smi."""
    try:
        report = ElementTree.fromstring(ask("-q", "-x"))
    except FileNotFoundError:
        return Cards()
    except NoAnswerError as error:
        return Cards(error=str(error))
    except ElementTree.ParseError:
        return Cards(error="nvidia-smi -q -x printed something else than XML")
    cards = tuple(_card(index, gpu) for index, gpu in enumerate(report.findall("gpu")))
    return Cards(cards, _text(report, "driver_version"), _links(ask) if len(cards) > 1 else "")


def _links(ask: Ask) -> str:
    try:
        said = ask("topo", "-m")
    except (NoAnswerError, FileNotFoundError):
        return ""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
    return plain.partition("Legend")[0].strip("\n").rstrip()


def _card(index: int, gpu: Element) -> Card:
    return Card(
        index=index,
        name=_text(gpu, "product_name"),
        uuid=_text(gpu, "uuid"),
        pci_bus_id=(_text(gpu, "pci/pci_bus_id") or gpu.get("id", "")).lower(),
        memory_mib=_number(gpu, "fb_memory_usage/total"),
        memory_used_mib=_number(gpu, "fb_memory_usage/used"),
        temperature=_number(gpu, "temperature/gpu_temp"),
        power_limit=_first(
            gpu, "gpu_power_readings/current_power_limit", "power_readings/power_limit"
        ),
        default_power_limit=_first(
            gpu, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"
        ),
        sm_clock_mhz=_number(gpu, "clocks/sm_clock"),
        max_sm_clock_mhz=_number(gpu, "max_clocks/sm_clock"),
        throttled_by=tuple(_throttling(gpu)),
        mig=_text(gpu, "mig_mode/current_mig") == "Enabled",
        compute_mode=_text(gpu, "compute_mode"),
        link_width=_whole(gpu, "pci/pci_gpu_link_info/link_widths/current_link_width"),
        max_link_width=_whole(gpu, "pci/pci_gpu_link_info/link_widths/max_link_width"),
        processes=tuple(
            Process(
                pid=int(_number(each, "pid") or 0),
                name=_text(each, "process_name"),
                memory_mib=_number(each, "used_memory"),
            )
            for each in gpu.findall("processes/process_info")
            if _text(each, "type") in _COMPUTES
        ),
    )


def _throttling(gpu: Element) -> list[str]:
    active = {
        re.sub(r"^clocks_(event|throttle)_reason_", "", reason.tag)
        for group in ("clocks_event_reasons", "clocks_throttle_reasons")
        for reason in gpu.findall(f"{group}/*")
        if (reason.text or "").strip() == "Active"
    }
    if active & {"hw_thermal_slowdown", "hw_power_brake_slowdown"}:
        active.discard("hw_slowdown")
    return [words for name, words in _THROTTLING.items() if name in active]


def _text(element: Element, path: str) -> str:
    said = (element.findtext(path) or "").strip()
    return "" if said in ("N/A", "[N/A]", "Requested functionality has been deprecated") else said


def _number(element: Element, path: str) -> float | None:
    """The number before its unit, as in "350.00 W"."""
    found = re.match(r"-?\d+(\.\d+)?", _text(element, path))
    return float(found.group()) if found else None


def _whole(element: Element, path: str) -> int | None:
    value = _number(element, path)
    return None if value is None else int(value)


def _first(element: Element, *paths: str) -> float | None:
    return next((value for path in paths if (value := _number(element, path)) is not None), None)
