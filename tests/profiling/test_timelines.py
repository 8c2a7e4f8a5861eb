from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_boa.profiling import AcceleratorTimeline, HostTimeline, timeline_of


def test_the_host_marks_readings_of_its_clock(ticker: Any) -> None:
    timeline = HostTimeline(ticker)
    begin = timeline.mark()
    ticker.passes(0.75)
    end = timeline.mark()
    timeline.settle(end)

    assert timeline.seconds(begin, end) == 0.75
    assert ticker.readings == 2


def test_an_accelerator_marks_new_events_and_reads_milliseconds(stream: Any) -> None:
    timeline = AcceleratorTimeline(torch.device("cuda", 1), new_event=stream)
    begin = timeline.mark()
    stream.passes(0.25)
    end = timeline.mark()

    assert stream.events == [begin, end]
    assert stream.synchronizations == 0
    with pytest.raises(RuntimeError, match="completed"):
        timeline.seconds(begin, end)
    timeline.settle(end)
    assert timeline.seconds(begin, end) == 0.25
    assert stream.synchronizations == 1


def test_events_are_made_for_the_device() -> None:
    asked = []

    class Recorded:
        def record(self) -> None:
            return None

    def new_event(device: torch.device) -> Recorded:
        asked.append(device)
        return Recorded()

    AcceleratorTimeline(torch.device("xpu", 3), new_event=new_event).mark()

    assert asked == [torch.device("xpu", 3)]


@pytest.mark.parametrize(
    ("device", "kind"),
    [("cpu", HostTimeline), ("cuda:1", AcceleratorTimeline), ("xpu", AcceleratorTimeline)],
)
def test_every_device_has_its_timeline(device: str, kind: type) -> None:
    assert type(timeline_of(torch.device(device))) is kind
