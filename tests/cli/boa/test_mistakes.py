"""A user's mistake is one sentence on stderr and exit code 2, in every command of `boa`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from .conftest import Boa

TWO = ("-d", "new=1ms", "-d", "old=3ms")

FILES = {
    "empty.yaml": "",
    "broken.yaml": "devices: [{name: a, seconds_per_sample: 0.1",
    "broken.json": '{"devices": [',
    "number.yaml": "3",
    "list.yaml": "- {name: a, seconds_per_sample: 0.1}",
    "none.yaml": "devices: []",
    "no_list.yaml": "devices: 3",
    "no_devices.yaml": "latency: 0.1",
    "nan.yaml": "devices: [{name: a, seconds_per_sample: .nan}]",
    "infinite.yaml": "devices: [{name: a, seconds_per_sample: .inf}]",
    "negative.yaml": "devices: [{name: a, seconds_per_sample: 0.1, overhead: -1}]",
    "no_time.yaml": "devices: [{name: a}]",
    "both_times.yaml": "devices: [{name: a, seconds_per_sample: 0.1, batch_sizes: [4], seconds: [1]}]",
    "half_table.yaml": "devices: [{name: a, batch_sizes: [4]}]",
    "uneven_table.yaml": "devices: [{name: a, batch_sizes: [4, 8], seconds: [0.1]}]",
    "double_table.yaml": "devices: [{name: a, batch_sizes: [4, 4], seconds: [0.1, 0.2]}]",
    "text.yaml": "devices: [{name: a, seconds_per_sample: fast}]",
    "unknown.yaml": "devices: [{name: a, seconds_per_sample: 0.1, overhed: 0.1}]",
    "unknown_above.yaml": "device: []\ndevices: [{name: a, seconds_per_sample: 0.1}]",
    "no_name.yaml": "devices: [{seconds_per_sample: 0.1}]",
    "blank_name.yaml": "devices: [{name: ' ', seconds_per_sample: 0.1}]",
    "no_rows.yaml": "devices: [{name: a, seconds_per_sample: 0.1, rows_at_once: 0}]",
    "throttle.yaml": "devices: [{name: a, seconds_per_sample: 0.1, throttle: {5: -1}}]",
    "step.yaml": "devices: [{name: a, seconds_per_sample: 0.1, throttle: {-5: 2}}]",
    "word_step.yaml": "devices: [{name: a, seconds_per_sample: 0.1, throttle: {soon: 2, 7: 2}}]",
    "half.yaml": "devices: [{name: a, seconds_per_sample: 0.1, count: 1.5}]",
    "all_fail.yaml": "devices: [{name: a, seconds_per_sample: 0.1, fails_at: 3}]",
    "record.json": '{"file_version": 1}',
    "old_record.json": '{"file_version": 0}',
    "profile.json": '{"version": 1, "made_for": {}, "plan": {}, "ranks": []}',
    "old_profile.json": '{"version": 0, "made_for": {}, "plan": {}, "ranks": []}',
    "two.yaml": "devices: [{name: A1, seconds_per_sample: 0.1}, {name: A2, seconds_per_sample: 0.3}]",
}

OF_BOTH: list[tuple[Sequence[str], str]] = [
    ((), "devices: expected one source, a file (devices.yaml, profile.json), one of the clusters"),
    (("thesis_8gpu", "-d", "new=1ms"), "got thesis_8gpu and --device."),
    (("thesis_8gp",), "got 'thesis_8gp', and there is no such file; did you mean thesis_8gpu?"),
    (("none",), "devices: expected a file or one of cloud_spot_mix"),
    (
        ("missing.yaml",),
        "missing.yaml: expected a list of devices or a profile, but there is no such file.",
    ),
    (
        ("nowhere/x",),
        "nowhere/x: expected a list of devices or a profile, but there is no such file.",
    ),
    (("",), ", got no name."),
    (("folder",), "folder: expected a list of devices or a profile, but it is a folder."),
    (("binary.yaml",), "binary.yaml: expected a list of devices or a profile, but it is no text."),
    (
        ("empty.yaml",),
        "empty.yaml: expected the field devices with a list of devices, got an empty file.",
    ),
    (
        ("broken.yaml",),
        "broken.yaml: expected a list of devices or a profile in YAML, got a text that is none",
    ),
    (
        ("broken.json",),
        "broken.json: expected a list of devices or a profile in JSON, got a text that is none",
    ),
    (
        ("number.yaml",),
        "number.yaml: expected the field devices with a list of devices, got 3.",
    ),
    (("list.yaml",), "list.yaml: expected the field devices with a list of devices, got [{"),
    (("none.yaml",), "none.yaml: devices: expected at least one device, got an empty list."),
    (("no_list.yaml",), "no_list.yaml: devices: expected a list, got 3."),
    (("no_devices.yaml",), "no_devices.yaml: expected the field devices, which is missing."),
    (("nan.yaml",), "nan.yaml: devices[0].seconds_per_sample: expected a number > 0.0, got nan."),
    (
        ("infinite.yaml",),
        "devices[0].seconds_per_sample: expected a number <= 1000000000.0, got inf.",
    ),
    (("negative.yaml",), "negative.yaml: devices[0].overhead: expected a number >= 0.0, got -1."),
    (("no_time.yaml",), "no_time.yaml: devices[0]: expected either seconds_per_sample"),
    (("both_times.yaml",), "both_times.yaml: devices[0]: expected either seconds_per_sample"),
    (("half_table.yaml",), "half_table.yaml: devices[0]: expected either seconds_per_sample"),
    (
        ("uneven_table.yaml",),
        "uneven_table.yaml: devices[0]: TableTime: expected as many seconds as batch sizes",
    ),
    (
        ("double_table.yaml",),
        "double_table.yaml: devices[0]: TableTime: every batch size may stand once",
    ),
    (("text.yaml",), "text.yaml: devices[0].seconds_per_sample: expected a number"),
    (("unknown.yaml",), "unknown.yaml: devices[0]: unknown field overhed; did you mean overhead?"),
    (("unknown_above.yaml",), "unknown_above.yaml: unknown field device; did you mean devices?"),
    (("no_name.yaml",), "no_name.yaml: devices[0]: expected the field name, which is missing."),
    (
        ("blank_name.yaml",),
        "blank_name.yaml: devices[0]: name: expected a text that can be printed, got ' '.",
    ),
    (("no_rows.yaml",), "devices[0].rows_at_once: expected a whole number >= 1, got 0."),
    (("throttle.yaml",), "throttle.yaml: devices[0].throttle: expected a number > 0.0"),
    (
        ("step.yaml",),
        "step.yaml: devices[0].throttle: expected each step to be a whole number >= 0, got -5.",
    ),
    (
        ("word_step.yaml",),
        "devices[0].throttle: expected each step to be a whole number, got 'soon', 7.",
    ),
    (("half.yaml",), "half.yaml: devices[0].count: expected a whole number, got 1.5."),
    (
        ("record.json",),
        "record.json: expected a list of devices or a profile, got the record of a training",
    ),
    (
        ("profile.json",),
        "profile: expected made_for to have devices in profile.json, got it is missing.",
    ),
    (
        ("old_profile.json",),
        "profile: expected a profile of version 1 in old_profile.json, got version 0.",
    ),
    (("-d", "3090"), "--device: expected NAME=TIME_PER_ROW[+FIXED_TIME], as in 3090=2.1ms"),
    (("-d", "=2ms"), "--device: expected NAME=TIME_PER_ROW[+FIXED_TIME], as in 3090=2.1ms"),
    (
        ("-d", "3090=2.1"),
        "--device: expected a time with a unit (us, ms, s), as in 2.1ms, got '2.1'.",
    ),
    (
        ("-d", "3090=nanms"),
        "--device: expected a time with a unit (us, ms, s), as in 2.1ms, got 'nanms'.",
    ),
    (
        ("-d", "3090=-1ms"),
        "--device: expected a time with a unit (us, ms, s), as in 2.1ms, got '-1ms'.",
    ),
    (("-d", "3090=1e999s"), "--device: expected a time with a unit"),
    (("-d", "3090=0ms"), "--device: expected a time per row above 0, got '0ms' in '3090=0ms'."),
    (("-d", "3090=1ms+"), "--device: expected a time with a unit"),
    (("-d", "0x3090=1ms"), "--device: expected 1 to 100,000 devices, got '0x3090=1ms'."),
    (
        ("-d", "1000001xa=1ms"),
        "--device: expected 1 to 100,000 devices, got '1000001xa=1ms'.",
    ),
    (("-d", "-2xa=1ms"), "--device: expected 1 to 100,000 devices, got '-2xa=1ms'."),
    (("-d", "1.5xa=1ms"), "--device: expected 1 to 100,000 devices, got '1.5xa=1ms'."),
    (
        ("-d", "a=1ms,b=2ms"),
        "got 'a=1ms,b=2ms'; each other device has a --device of its own.",
    ),
    (("-d", "a=b=1ms"), "with neither = nor , in its name, got 'a=b=1ms'"),
    (("-d", "a=1ms", "-d", "a=2ms"), "--device: expected each name once, got 'a' 2 times"),
    ((*TWO, "-b", "1"), "a global batch of 1 rows cannot give each of 2"),
    (
        (*TWO, "-b", "1000000000001"),
        "--global-batch: expected at most 1,000,000,000,000, got 1,000,000,000,001.",
    ),
    ((*TWO, "-b", "9" * 25), "--global-batch: expected at most 1,000,000,000,000, got 9,999"),
    ((*TWO, "-b", "0"), "--global-batch: expected a whole number of at least 1"),
    ((*TWO, "-b", "many"), "--global-batch: expected a whole number of at least 1"),
    ((*TWO, "-b", "1.5"), "--global-batch: expected a whole number of at least 1"),
    ((*TWO, "-b"), "'-b' requires an argument"),
    (
        (*TWO, "--gradient-bytes", "1MB"),
        "--bandwidth: expected the bandwidth of the links, as in 10Gbit/s",
    ),
    (
        (*TWO, "--bandwidth", "1GB/s"),
        "--bandwidth: expected --gradient-bytes or --parameters above 0 beside it, got neither.",
    ),
    (
        (*TWO, "--latency", "5us"),
        "--latency: expected --gradient-bytes or --parameters above 0 beside it, got neither.",
    ),
    (
        (*TWO, "--parameters", "1M", "--bandwidth", "10"),
        "--bandwidth: expected a rate above 0 with a unit (MB/s, GB/s, Mbit/s, Gbit/s), as in 10Gbit/s, got '10'.",
    ),
    (
        (*TWO, "--gradient-bytes", "1MB", "--parameters", "1M"),
        "--gradient-bytes: expected this or --parameters",
    ),
    ((*TWO, "--gradient-bytes", "large"), "--gradient-bytes: expected bytes"),
    ((*TWO, "--parameters", "1X"), "--parameters: expected a number of parameters"),
    (
        (*TWO, "--parameters", "1M", "--bandwidth", "0GB/s"),
        "--bandwidth: expected a rate above 0 with a unit",
    ),
    ((*TWO, "--latency", "-1us"), "--latency: expected a time with a unit"),
    ((*TWO, "--picture", "plan.txt"), "--picture: expected a file that ends in .png, .svg, .pdf"),
    (
        (*TWO, "--picture", "nowhere/plan.png"),
        "--picture: expected a file that ends in .png, .svg, .pdf",
    ),
    ((*TWO, "--colour"), "No such option: --colour"),
]
OF_PLAN: list[tuple[Sequence[str], str]] = [
    ((*TWO, "-b", "8,many"), "--global-batch: expected a whole number of at least 1, or several"),
    (
        (*TWO, "-b", "8,16", "--what-if", "add=new"),
        "--global-batch: expected one number beside --what-if, got 2.",
    ),
    (
        (*TWO, "-b", "8,16", "--picture", "plan.png"),
        "--picture: expected one --global-batch beside it, got 2.",
    ),
    ((*TWO, "--grow"), "--grow: expected --what-if beside it, got none."),
    ((*TWO, "--min", "1,2,3"), "--min: expected one number, or one for each of 2 devices, got 3."),
    ((*TWO, "--min", "-1"), "--min: expected a whole number of at least 0, or several"),
    (
        (*TWO, "--min", "9", "--max", "4", "-b", "20"),
        "--min is 9 on rank 0, above its --max 4; lower the one or raise the other.",
    ),
    (
        (*TWO, "--min", "1000", "-b", "64"),
        "--min is 1000 on rank 0, more than the 64 rows of the global batch; lower the one or enlarge the other.",
    ),
    ((*TWO, "--max", "0"), "--min is 1 on rank 0, above its --max 0"),
    ((*TWO, "-b", "1"), "use fewer ranks, or --min 0 permits ranks without rows."),
    ((*TWO, "--max", "4", "-b", "20"), "the upper bounds add up to 8 rows, fewer than the 20 rows"),
    (
        (*TWO, "--granularity", "0"),
        "--granularity: expected a whole number of at least 1, got '0'.",
    ),
    (
        (*TWO, "--granularity", "64", "-b", "20"),
        "no split of 20 rows into multiples of --granularity 64",
    ),
    ((*TWO, "--what-if", "buy=new"), "--what-if: expected add=DEVICE or drop=DEVICE"),
    ((*TWO, "--what-if", "add="), "--what-if: expected add=DEVICE or drop=DEVICE"),
    ((*TWO, "--what-if", "add=newer"), "got 'newer'; did you mean new?"),
    (
        (*TWO, "--what-if", "add=5090"),
        "expected a device of this set (new, old), or its times, as add=NAME=2.1ms",
    ),
    (
        ("two.yaml", "--what-if", "drop=a"),
        "--what-if: expected a device of this set (A1, A2), or drop=rank N",
    ),
    ((*TWO, "--what-if", "drop=2xold"), "--what-if: expected at most 1 of 'old' to drop, got 2."),
    (
        (*TWO, "--what-if", "drop=old,drop=old"),
        "--what-if: expected at most 0 of 'old' to drop, got 1.",
    ),
    (
        (*TWO, "--what-if", "drop=rank 2"),
        "--what-if: expected a rank from 0 to 1, each once, got rank 2.",
    ),
    ((*TWO, "--what-if", "drop=new,drop=old"), "--what-if: expected a device that stays"),
    (
        (*TWO, "-b", "3", "--what-if", "add=2xnew"),
        "--what-if add=2xnew: a global batch of 3 rows cannot give each",
    ),
]
OF_SIMULATE: list[tuple[Sequence[str], str]] = [
    ((*TWO, "--policies", "dpp"), "got 'dpp'; did you mean ddp?"),
    ((*TWO, "--policies", ""), "--policies: expected one or more of ddp, parameter_server"),
    ((*TWO, "--policies", "boa,boa"), "--policies: expected each policy once, got boa twice."),
    ((*TWO, "--policies", "ddp=2"), "--policies: expected ddp without a number, got ddp=2."),
    (
        (*TWO, "--policies", "lb_bsp=few"),
        "--policies: expected a whole number after lb_bsp=, as in lb_bsp=2",
    ),
    (
        (*TWO, "--steps", "1000000000"),
        "--steps: expected at most 1,000,000 for 2 devices (steps x devices up to 2,000,000), got 1,000,000,000.",
    ),
    (
        (*TWO, "--policies", "backup_workers=2"),
        "--policies backup_workers=2: backups: expected fewer than the 2 workers, got 2",
    ),
    (
        (*TWO, "--policies", "proportional=0"),
        "--policies proportional=0: measured_steps: expected a whole number >= 1, got 0",
    ),
    ((*TWO, "--steps", "0"), "--steps: expected a whole number of at least 1, got '0'."),
    (
        (*TWO, "--noise", "nan"),
        "--noise: expected a share from 0 to below 1, as in 0.02, got 'nan'.",
    ),
    ((*TWO, "--noise", "1"), "--noise: expected a share from 0 to below 1, as in 0.02, got '1'."),
    ((*TWO, "--seed", "-1"), "--seed: expected a whole number of at least 0, got '-1'."),
    (("all_fail.yaml",), "failures: expected a worker that stays"),
]
OF_REPORT: list[tuple[Sequence[str], str]] = [
    (
        ("missing",),
        "RUN: expected boa-run.json or a folder that holds one, got 'missing', which does not exist.",
    ),
    (
        ("folder",),
        "RUN: expected a folder with boa-run.json in it or below, got 'folder', which has none",
    ),
    (
        ("broken.json",),
        "broken.json: expected the record of a training (version 1), got something else: ",
    ),
    (
        ("empty.yaml",),
        "empty.yaml: expected the record of a training (version 1), got something else: ",
    ),
    (
        ("number.yaml",),
        "number.yaml: expected the record of a training (version 1), got something else: ",
    ),
    (
        ("record.json",),
        "record.json: expected the record of a training (version 1), got something else: ",
    ),
    (
        ("old_record.json",),
        "expected the record of a training of version 1, got version 0: read it with",
    ),
    (("binary.yaml",), "binary.yaml: expected the record of a training, but it is no text."),
    (
        ("record.json", "--html", "folder"),
        "--html: expected a file in a folder that exists, got 'folder'.",
    ),
    (("record.json", "--png", "run.txt"), "--png: expected a file that ends in .png, .svg, .pdf"),
    (
        ("record.json", "--trace", "nowhere/t"),
        "--trace: expected a file in a folder that exists, got 'nowhere/t'.",
    ),
    (("a", "b"), "unexpected extra argument"),
]
OF_APP: list[tuple[Sequence[str], str]] = [
    (("plann",), "No such command 'plann'."),
    (("--colour",), "No such option: --colour"),
]
MISTAKES = [
    *((("plan", *arguments), sentence) for arguments, sentence in [*OF_BOTH, *OF_PLAN]),
    *((("simulate", *arguments), sentence) for arguments, sentence in [*OF_BOTH, *OF_SIMULATE]),
    *((("report", *arguments), sentence) for arguments, sentence in OF_REPORT),
    *OF_APP,
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file for each mistake that a file can have."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "sentence"), MISTAKES, ids=[" ".join(arguments)[:60] for arguments, _ in MISTAKES]
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    boa: Boa, arguments: Sequence[str], sentence: str
) -> None:
    answer = boa(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("boa: ")
    assert answer.err.count("\n") == 1
    assert answer.err.endswith((".\n", "?\n"))
    assert sentence in answer.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(boa: Boa, folder: Path) -> None:
    (folder / "two.yaml").chmod(0)
    answer = boa("plan", "two.yaml")
    assert answer.code == 2
    assert "but it may not be read." in answer.err
