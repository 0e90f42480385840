"""The loop: plan a step, submit it, wait for whichever lane finishes first, observe, deliver.

Everything that changes state runs in one thread: the engine's own (`start`), or the caller's (`run_until`, on virtual
time). Other threads only queue tasks and actions, under one lock, and wake the loop.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType

from dlfp_edge.clock import Clock
from dlfp_edge.commit import Committer
from dlfp_edge.controls import with_control
from dlfp_edge.delivery import Delivery
from dlfp_edge.device import CpuTopology
from dlfp_edge.errors import EngineClosed, RuntimeFailure
from dlfp_edge.given import check_arrival, check_not_in, check_process
from dlfp_edge.grammar import compile_grammar
from dlfp_edge.handle import Task
from dlfp_edge.lane_state import LaneState
from dlfp_edge.limits import LaneLimits, Limits
from dlfp_edge.placement import open_lanes
from dlfp_edge.queues import Queues
from dlfp_edge.runtime import LaneSpec, Pooling, Runtime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.starter import Starter
from dlfp_edge.state import State
from dlfp_edge.stopper import Stopper
from dlfp_edge.structured import check_fits
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskRecord, TaskSpec
from dlfp_edge.timers import Timers
from dlfp_edge.trace import Counters, Snapshot, StepRecord
from dlfp_edge.watchdog import Watchdog

NO_PROGRESS_S = 60.0
MOST_MESSAGES = 100
_log = logging.getLogger(__name__)
logging.getLogger("dlfp_edge").addHandler(logging.NullHandler())
"""Without it Python would print warnings: whoever embeds an engine reads `Engine.messages`, or sets logging up."""


class Engine:
    """Foreground and background tasks on one runtime. A context manager: entering starts it, leaving closes it.

    The engine does not own the runtime: close that afterwards. `on_step` is called in the engine's thread with a record
    of every step; set it before starting.
    """

    def __init__(self, runtime: Runtime, settings: Settings | None = None, topology: CpuTopology | None = None) -> None:
        self.runtime = runtime
        self.clock: Clock = runtime.clock
        self.counters = Counters()
        self.on_step: Callable[[StepRecord], None] | None = None
        self.failure: Exception | None = None
        self.messages: list[str] = []
        settings = with_control(settings or Settings())
        self._lanes = open_lanes(runtime, settings, self._say)
        self.placement: Placement = self._lanes.placement
        self.controller_name = f"{self.placement.value}/{self._lanes.background.controller.name}"
        self._queues: Queues[Task] = Queues(settings.queue_limit, single_class=settings.single_class)
        self._delivery = Delivery(self._say, self.clock)
        self._state = State(runtime.capabilities, self._lanes, settings, self.counters, self._delivery, self._say)
        self.limits = self._limits()
        self._starter = Starter(self._state, topology)
        self._committer = Committer(self._state)
        self._stopper = Stopper(self._state)
        self._watchdog = Watchdog(self._state, self._say)
        self._log_lanes()
        for message in getattr(runtime, "messages", ()):
            self._say(message)
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()
        self._timers = Timers()
        self._expiries: dict[str, int] = {}
        self._ids = itertools.count()
        self._live: dict[str, Task] = {}
        self._refused: dict[Class, tuple[int, tuple[object, ...]]] = {}
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._closing = False
        self._closed = False
        self._background_finished = 0
        self._progress_at = 0.0
        self._delivery.ended = self._ended

    # --- for callers, from any thread -------------------------------------------------------------------------------

    @property
    def lane_specs(self) -> tuple[LaneSpec, ...]:
        """The lanes as they were asked of the runtime."""
        return tuple(lane.lane.spec for lane in self._lanes.all)

    def start(self) -> None:
        """Run the loop in a thread of its own until `close`."""
        if self._thread is None:
            if self.clock.name != "virtual":
                self._delivery.start(lambda error: self._post(lambda: _raise(error)))
            self._thread = threading.Thread(target=self._run, name="dlfp-engine", daemon=True)
            self._thread.start()

    def submit(
        self,
        spec: TaskSpec,
        *,
        arrived: float | None = None,
        on_token: OnToken | None = None,
        on_finish: OnFinish | None = None,
    ) -> Task:
        """Queue a task and return its handle.

        `arrived` is when it was scheduled to arrive, if that is not now. Raises UsageError for a task that could never
        run, QueueFull when its class has too many waiting, EngineClosed after `close` or a failure.
        """
        check_process(self._process)
        self.check(spec)
        if arrived is not None:
            check_arrival(arrived)
        number, now = next(self._ids), self.clock.now()
        record = TaskRecord(
            request_id=f"{spec.task_class.value[:1]}{number}",
            task_class=spec.task_class,
            label=spec.label,
            prompt_tokens=len(spec.prompt),
            arrived=now if arrived is None else arrived,
            pace=spec.pace,
        )
        task = Task(spec, record, self.runtime.tokenizer, self._cancel, on_token, on_finish)
        with self._lock:
            if self._closing:
                raise EngineClosed(f"the engine is closed: {self.failure}" if self.failure else "the engine is closed")
            self._queues.put(task)
            self._live[task.request_id] = task
            self._inbox.append(lambda: self._arrive(task))
        self.runtime.wake()
        return task

    def check(self, spec: TaskSpec) -> None:
        """Raises UsageError for a task that could never run here."""
        self.limits.check(spec)
        if spec.sampling.grammar is not None and not spec.embed:
            check_fits(compile_grammar(spec.sampling.grammar), self.runtime.tokenizer, spec.max_tokens)

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` in the engine's thread when its clock reads `when`."""
        self._timers.set(when, action)
        self.runtime.wake()

    def hold_background(self, held: bool) -> None:
        """Start no step of background work while held; a step that runs is let finish."""
        self._post(lambda: self._hold(held))

    def forget_prefixes(self) -> None:
        """Drop the KV cells that ended tasks have left for prompts that begin the same."""
        self._post(self._forget_prefixes)

    def snapshot(self) -> Snapshot:
        """The engine at this moment, for a live view."""
        state, lanes = self._state, self._lanes
        count = {member: sum(lane.count(member) for lane in lanes.all) for member in Class}
        return Snapshot(
            now=self.clock.now(),
            placement=self.placement.value,
            controller=self.controller_name,
            target_s=state.targets.target(1) if lanes.background.controller.steered else None,
            decode_only_s=state.decode_times.alone_s(1),
            budget=lanes.background.controller.state,
            foreground_running=count[Class.FOREGROUND],
            foreground_queued=self._queues.count(Class.FOREGROUND),
            background_running=count[Class.BACKGROUND],
            background_queued=self._queues.count(Class.BACKGROUND),
            paused=sum(not running.active for lane in lanes.all for running in lane.running),
            background_finished=self._background_finished,
            background_prompt_tokens=state.background_prompt_tokens,
            kv_used=sum(lane.lane.kv_used() for lane in lanes.all) if not self._closed else 0,
            kv_cells=sum(lane.cells for lane in lanes.all),
            last_gap_s=state.last_gap_s,
            messages=tuple(self.messages),
            stuck=self._watchdog.stuck(self.clock.now()),
        )

    def close(self) -> None:
        """Cancel what is left, so that every record ends, stop the loop and shut the lanes.

        Raises UsageError in a callback, whose thread this waits for.
        """
        if os.getpid() != self._process:
            return  # it is the other process's to close
        check_not_in(self._thread)
        check_not_in(self._delivery.thread)
        self._post(self._begin_close)
        if self._thread is not None:
            self._thread.join()
        elif not self._closed:
            self._begin_close()
            while not self._drained():
                self._turn()
            self._shut()

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run the loop in the calling thread until `done()`, or until nothing is left to happen."""
        while not done():
            self._act()
            if done() or self._idle():
                return
            self._wait()

    def _run(self) -> None:
        try:
            while not self._drained():
                self._turn()
        except BaseException as error:  # nobody else would learn that the loop has ended
            _log.error("the engine failed", exc_info=True)
            self.failure = error if isinstance(error, Exception) else RuntimeFailure(repr(error))
            self._fail(self.failure)
        self._shut()

    def _turn(self) -> None:
        self._act()
        self._wait()

    def _act(self) -> None:
        """What has arrived, what is due, what can start."""
        while self._inbox:
            self._inbox.popleft()()
        now = self.clock.now()
        while (action := self._timers.take(now)) is not None:
            action()
        # Steps start before tokens are handed out: what readers do with them must not lengthen the next gap.
        self._start(now)
        while self._state.pressure.freed():
            self._start(now)
        self._delivery.release(now)

    def _start(self, now: float) -> None:
        self._state.background_waiting = self._queues.count(Class.BACKGROUND) > 0
        self._state.owe(now)
        self._admit(now)
        self._state.background_waiting = self._queues.count(Class.BACKGROUND) > 0
        self._state.queued = sum(self._queues.count(member) for member in Class)
        self._delivery.least_gap_s = self._state.least_gap_s()
        self._starter.start_steps(now)
        self._stopper.clear_the_way(now)

    def _wait(self) -> None:
        """Wait for whatever comes first, and account for the steps that have ended."""
        if self._inbox or self._drained():
            return
        for result in self.runtime.wait(self._next_wake(self.clock.now())):
            self._committer.commit(result, self.on_step)
        now = self.clock.now()
        self._stopper.enforce_bounds(now)
        self._stopper.begin_hold(now)
        self._stopper.regain(now)
        self._watchdog.look(now)

    def _next_wake(self, now: float) -> float | None:
        due = (
            self._delivery.next_due(),
            self._state.calm_at if self._delivery.waits_for_calm else None,
            self._stopper.next_wake(now),
            self._watchdog.next_wake(),
            self._timers.next_due(),
        )
        return min((t for t in due if t is not None), default=None)

    def _admit(self, now: float) -> None:
        admitted = False
        for task_class in Class:
            lane = self._state.lane_of(task_class)
            # Who had to leave comes before who has not been there yet, and in one lane foreground before background.
            if self._state.pressure.resume(lane, task_class):
                if task_class is Class.FOREGROUND and not self._background_is_in(lane, now):
                    break
                started = self._admit_waiting(lane, task_class, now)
                admitted |= started and task_class is Class.BACKGROUND
                if not self._makes_way(lane, task_class):
                    continue
            if self._state.shared:
                break
        if admitted or self._state.background_progress > self._progress_at:
            self._progress_at = now
        self._report_no_progress(now)

    def _background_is_in(self, lane: LaneState, now: float) -> bool:
        """Whether background work has KV cells, where it is owed its floor: nobody new takes any before it does.

        Without classes whoever had to leave comes first.
        """
        if self._state.settings.single_class:
            return self._state.pressure.resume(lane, Class.BACKGROUND)
        if not self._state.owed or lane.serves_background():
            return True
        if self._state.pressure.resume(lane, Class.BACKGROUND):
            while not lane.serves_background() and self._admit_next(lane, Class.BACKGROUND, now):
                """One that the runtime refuses makes way for the next."""
        return lane.serves_background() or not (lane.has_background() or self._queues.count(Class.BACKGROUND))

    def _admit_waiting(self, lane: LaneState, task_class: Class, now: float) -> bool:
        """Start the waiting tasks of a class that have a place; whether there was one."""
        admitted = False
        while self._admit_next(lane, task_class, now):
            admitted = True
        return admitted

    def _admit_next(self, lane: LaneState, task_class: Class, now: float) -> bool:
        if not lane.has_place(task_class) or self._queues.first(task_class) is None:
            return False
        with self._lock:
            asked = (self._queues.changes, lane.outlook(task_class))
            if asked == self._refused.get(task_class):
                return False
            lane.awaited.discard(task_class)
            found = self._queues.take(task_class, now, lane.place)
        if found is None:
            self._refused[task_class] = asked
            return False
        task, match = found
        try:
            lane.admit(task, match, now)
            _log.debug("task %s admitted to the %s lane", task.request_id, lane.name)
        except Exception as error:  # what a caller gave must not stop the others
            self._delivery.finish(task, Finish.ERROR, now, f"the runtime refused the task: {error}")
            _log.error("task %s was refused by the runtime", task.request_id, exc_info=True)
        return True

    def _makes_way(self, lane: LaneState, task_class: Class) -> bool:
        """Whether background tasks leave their KV cells to a foreground task that waits for them."""
        if task_class is not Class.FOREGROUND or not self._state.classes_share or self._state.owed:
            return False
        with self._lock:
            task = self._queues.first(task_class)
        return task is not None and self._state.pressure.make_way(lane, task)

    def _report_no_progress(self, now: float) -> None:
        waiting = self._queues.count(Class.BACKGROUND) or self._lanes.background.has_background()
        if not waiting or self._state.held:
            self._progress_at = now
        elif now - self._progress_at > NO_PROGRESS_S:
            self._say(f"background has made no progress for {NO_PROGRESS_S:.0f} s: {self._stopper.waiting_for()}")

    # --- arrivals and ends --------------------------------------------------------------------------------------------

    def _arrive(self, task: Task) -> None:
        if task.spec.deadline_s is not None and task.request_id in self._live:
            expires = task.arrived + task.spec.deadline_s
            self._expiries[task.request_id] = self._timers.set(expires, lambda: self._end(task, Finish.DEADLINE))
        self._stopper.arrived(task, self.clock.now())

    def _cancel(self, task: Task) -> None:
        self._post(lambda: self._end(task, Finish.CANCELLED))

    def _end(self, task: Task, finish: Finish, error: str | None = None) -> None:
        """End a task from outside, wherever it is; one that has ended, and was shown, stays as it was."""
        now = self.clock.now()
        if task.record.finish is not None:
            self._delivery.finish(task, finish, now, error)  # its reader may not have been shown all of it
            return
        with self._lock:
            waiting = self._queues.remove(task)
        if waiting:
            self._delivery.finish(task, finish, now, error)
        else:
            self._stopper.end(task, finish, now, error)

    def _hold(self, held: bool) -> None:
        self._state.note_background(self.clock.now())
        self._state.held = held

    def _forget_prefixes(self) -> None:
        for lane in self._lanes.all:
            lane.sequences.forget_all()

    def _ended(self, task: Task) -> None:
        """A task was shown to its end, in whichever thread that happened."""
        whole = task.record.finish in (Finish.STOP, Finish.LENGTH)
        with self._lock:
            self._live.pop(task.request_id, None)
            expiry = self._expiries.pop(task.request_id, None)
            self._background_finished += whole and task.spec.task_class is Class.BACKGROUND
        if expiry is not None:
            self._timers.cancel(expiry)
        _log_end(task.record)

    def _begin_close(self) -> None:
        with self._lock:
            self._closing = True
        self._timers.clear()
        self._delivery.stop()
        self._delivery.flush(self.clock.now())
        for task in list(self._live.values()):
            self._end(task, Finish.CANCELLED)
        self._delivery.flush(self.clock.now())
        self._stopper.interrupt_all(self.clock.now())

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._closing = True
        self._delivery.stop()
        for task in list(self._live.values()):
            self._delivery.finish(task, Finish.ERROR, self.clock.now(), f"the engine failed: {error}")
        self._delivery.flush(self.clock.now())

    def _shut(self) -> None:
        self._closed = True
        for lane in self._lanes.all:
            lane.lane.shut()

    def _drained(self) -> bool:
        """Whether the engine is closing and no step is left to wait for."""
        return self._closing and not any(lane.in_flight for lane in self._lanes.all)

    def _idle(self) -> bool:
        if self._inbox or self._timers.next_due() is not None or self._delivery.next_due() is not None:
            return False
        if any(lane.in_flight or lane.running for lane in self._lanes.all):
            return False
        return not any(self._queues.count(member) for member in Class)

    def _post(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            self._inbox.append(action)
        self.runtime.wake()

    def _limits(self) -> Limits:
        lanes = {member: self._state.lane_of(member) for member in Class}
        return Limits(
            self.runtime.tokenizer.vocabulary,
            self.runtime.capabilities.pooling is not Pooling.NONE,
            {
                member: LaneLimits(lane.name, min(lane.lane.sequence_context, lane.cells))
                for member, lane in lanes.items()
            },
        )

    def _log_lanes(self) -> None:
        for lane in self._lanes.all:
            limits = {member.value: limit for member, limit in lane.limits.items()}
            fields = {"setting": self.controller_name, "priority": lane.lane.spec.priority.value, "tasks": limits}
            _log.info("lane %s opened: %d KV cells", lane.name, lane.cells, extra={"fields": fields})

    def _say(self, message: str, fields: Mapping[str, object] | None = None) -> None:
        if message not in self.messages and len(self.messages) < MOST_MESSAGES:
            self.messages.append(message)
            _log.warning("%s", message, extra={"fields": fields})


def _raise(error: BaseException) -> None:
    raise error


def _log_end(record: TaskRecord) -> None:
    level = logging.ERROR if record.finish is Finish.ERROR else logging.DEBUG
    if _log.isEnabledFor(level) and record.finish is not None:
        fields = {"prompt_tokens": record.prompt_tokens, "output_tokens": len(record.output_token_ids)}
        why = f": {record.error}" if record.error else ""
        _log.log(level, "task %s ended, %s%s", record.request_id, record.finish.value, why, extra={"fields": fields})
