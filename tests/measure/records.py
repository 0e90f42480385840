"""Request records for the tests of what is measured."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import strategies as st

from dlfp_edge.task import Class, Finish, TaskRecord


def record(
    gaps_s: list[float],
    *,
    arrived: float = 10.0,
    ttft_s: float = 0.5,
    contended: list[bool] | None = None,
    shown_gaps_s: list[float] | None = None,
    pace: float | None = None,
    late_s: list[float] | None = None,
    finish: Finish = Finish.LENGTH,
    task_class: Class = Class.FOREGROUND,
) -> TaskRecord:
    """A request whose tokens come `ttft_s` after its arrival and then at these gaps.

    With a pace each was shown `late_s` after it was due, or before where that is negative.
    """
    times = list(accumulate(gaps_s, initial=arrived + ttft_s))
    shown = times if shown_gaps_s is None else list(accumulate(shown_gaps_s, initial=times[0]))
    late = [0.0] * len(times) if late_s is None else late_s
    return TaskRecord(
        request_id="r",
        task_class=task_class,
        label="test/0/0",
        prompt_tokens=8,
        arrived=arrived,
        pace=pace,
        output_token_ids=list(range(len(times))),
        token_times=times,
        shown_times=shown,
        due_times=[] if pace is None else [at - by for at, by in zip(shown, late, strict=True)],
        contended=[False] * len(times) if contended is None else contended,
        finished=times[-1],
        finish=finish,
    )


durations = st.floats(min_value=0.0, max_value=100.0, allow_subnormal=False)

records = st.builds(
    record,
    st.lists(durations, max_size=20),
    arrived=durations,
    ttft_s=durations,
    finish=st.sampled_from([Finish.LENGTH, Finish.STOP, Finish.CANCELLED, Finish.DEADLINE]),
)
