"""The processes behind a notebook: started once, kept between cells, replaced when one of them is lost."""

from __future__ import annotations

import selectors
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress

import cloudpickle

from course_lib.ranks import member as members
from course_lib.ranks import places, report, server
from course_lib.ranks.member import Member
from course_lib.ranks.patience import Limit
from course_lib.ranks.tasks import Failure, Outcome, Task
from course_lib.ranks.wire import Kind, Message

START_LIMIT_S = 60.0
_GRACE_S = 1.0  # how long the other ranks may take to end by themselves after one failed
_LAST_WORDS = 8  # reads of a wire that empty it, whatever it holds
_START = 0  # the number of the task that a rank carries out at its start

Listener = Callable[[int | None, str], None]


class RankPool:
    """`world_size` processes joined in one group.

    Cost: 0.1 s; the first waits for the fork server, which imports torch and what training needs, once for all, in 2 s.
    Raises: OSError in four parts if the system refuses; RankError if a rank does not start.
    """

    def __init__(self, world_size: int, device: str) -> None:
        self.world_size = world_size
        self.device = device
        self.tasks = _START
        self.has_variables = False  # whether a cell ran: its variables would be lost with the pool
        self._members: list[Member] = []
        self._selector = selectors.DefaultSelector()
        self._waiting: list[tuple[Member, Message]] = []  # came between two tasks
        self._ended: set[int] = set()  # ranks whose process was seen to end
        self._late: set[int] = set()  # ranks of which something came that belongs to an earlier task
        self.place = places.current()
        places.prepare()
        self.notice = self._start()

    @property
    def lost(self) -> list[int]:
        """The ranks whose process has ended."""
        if self._members:
            self._waiting = list(self._messages(0.0))
        return sorted(self._ended)

    @property
    def alive(self) -> bool:
        """Whether every rank's process still runs."""
        return bool(self._members) and not self.lost

    def _start(self) -> str:
        """Start the processes and wait until all have joined; return what the learner should know."""
        with server.refusals_told():
            self._folder = server.new_folder()
        try:
            with places.refusals_told():
                for member in places.start_members(self.world_size, self._folder, self.device):
                    self._members.append(member)
                    self._selector.register(member.work, selectors.EVENT_READ, member)
                    self._selector.register(member.process.sentinel, selectors.EVENT_READ, member)
            everyone = list(range(self.world_size))
            notices: list[str] = []
            limit = Limit(START_LIMIT_S)
            outcomes, failures = self._collect(_START, everyone, limit, lambda rank, text: notices.append(text))
            if len(outcomes) < self.world_size or failures:
                raise report.start_error(self.world_size, outcomes, failures)
        except BaseException:
            self.kill()
            raise
        return "".join([places.notice(self.world_size), *notices, *(outcomes[rank].value for rank in everyone)])

    def run(self, task: Task, *, ranks: list[int], timeout: float, listen: Listener) -> dict[int, Outcome]:
        """Carry out `task` on `ranks`; return each outcome. `listen(rank, text)` hears output while it comes.

        Raises: RankError if a rank raised or died, RankTimeout if not all ended within `timeout` seconds, or within
        those that a rank asked for last (`patience.more_time`). A rank that still waits by then cannot be trusted
        again: the pool is killed, and a new one starts with the next task.
        """
        try:
            self._send(task, ranks)
            limit = Limit(timeout)
            outcomes, failures = self._collect(task.number, ranks, limit, listen)
            self._judge(task.number, ranks, outcomes, failures, limit)
        except report.RankError:
            raise
        except BaseException:  # an interrupt, a listener that fails: the ranks' answers would come into the next task
            self.kill()
            raise
        finally:
            for rank in sorted(self._late):
                listen(None, f"rank {rank}: what a thread or process of an earlier task said is left out\n")
            self._late.clear()
        return outcomes

    def _send(self, task: Task, ranks: list[int]) -> None:
        message = cloudpickle.dumps(task)
        for rank in ranks:
            member = self._members[rank]
            member.work.put(task.number, message)
            if member.work.unsent and member.work in self._selector.get_map():
                self._selector.modify(member.work, selectors.EVENT_READ | selectors.EVENT_WRITE, member)

    def _collect(
        self, number: int, ranks: list[int], limit: Limit, listen: Listener
    ) -> tuple[dict[int, Outcome], dict[int, Failure | None]]:
        """Gather outcomes until all ended, the limit is over, or the grace after a first failure."""
        outcomes: dict[int, Outcome] = {}
        failures: dict[int, Failure | None] = {}  # in the order in which they came; None: the process died
        while True:
            failures |= {rank: None for rank in ranks if rank in self._ended and rank not in outcomes | failures}
            if failures:
                limit.end_within(_GRACE_S)
            if limit.left_s <= 0 or len(outcomes.keys() | failures.keys()) == len(ranks):
                return outcomes, failures
            for member, message in self._messages(limit.left_s):
                if message.kind == Kind.MORE_TIME:
                    if message.number == number and not failures:
                        limit.renew(float(message.content))
                    continue
                outcome = self._heard(number, member, message, listen)
                if outcome is not None:
                    outcomes[member.rank] = outcome
                    if outcome.failure is not None:
                        failures[member.rank] = outcome.failure

    def _messages(self, limit_s: float) -> Iterator[tuple[Member, Message]]:
        """What comes within one wait; whose process ended is noted in `_ended`, after its last words."""
        waiting, self._waiting = self._waiting, []
        yield from waiting
        for key, events in self._selector.select(0.0 if waiting else limit_s):
            member: Member = key.data
            if key.fileobj is not member.work:
                self._selector.unregister(key.fileobj)
                member.process.end_group()  # what it forked would go on speaking for it
                for _ in range(_LAST_WORDS):
                    yield from self._taken(member)
                self._ended.add(member.rank)
            if member.rank in self._ended:
                continue
            if events & selectors.EVENT_WRITE:
                member.work.flush()
                if not member.work.unsent:
                    self._selector.modify(member.work, selectors.EVENT_READ, member)
            if events & selectors.EVENT_READ:
                yield from self._taken(member)

    def _taken(self, member: Member) -> list[tuple[Member, Message]]:
        try:
            return [(member, message) for message in member.work.take()]
        except EOFError:
            with suppress(KeyError):
                self._selector.unregister(member.work)
            self._ended.add(member.rank)
            return []

    def _heard(self, number: int, member: Member, message: Message, listen: Listener) -> Outcome | None:
        """Pass on what was printed, return an answer; only the rank's own process answers, and only this task.

        What a process that an earlier task forked has to say comes late, and is no fault of this task.
        """
        if message.kind != Kind.OUTPUT:
            if message.process != member.process.pid and message.number < number:
                self._late.add(member.rank)
                return None
            if (message.number, message.process) != (number, member.process.pid):
                self.kill()
                raise report.stray_error(member.rank, member.process.pid, message)
            outcome: Outcome = cloudpickle.loads(message.content)
            return outcome
        if message.number == number:
            listen(member.rank, message.content.decode())
        else:
            self._late.add(member.rank)
        return None

    def _judge(
        self,
        number: int,
        ranks: list[int],
        outcomes: dict[int, Outcome],
        failures: dict[int, Failure | None],
        limit: Limit,
    ) -> None:
        """Raise the one error that explains a run that did not end well; heal or kill the pool first."""
        waiting = [rank for rank in ranks if rank not in outcomes and rank not in failures]
        if not waiting and not failures:
            return
        there = [self._members[rank] for rank in ranks if rank not in self._ended]
        found = members.where(there, number)
        deaths = {rank: self._members[rank].process.death() for rank, failure in failures.items() if failure is None}
        finished = [rank for rank in ranks if rank in outcomes and rank not in failures]
        lost = bool(waiting) or None in failures.values() or not self._in_step()
        if lost:
            self.kill()
        raise report.run_error(
            failures, found, waiting, deaths=deaths, finished=finished, lost=lost, limit=limit, world_size=len(ranks)
        )

    def _in_step(self) -> bool:
        """Whether all ranks still pass a barrier together after a failed task."""
        self.tasks += 1
        everyone = list(range(self.world_size))
        self._send(Task(number=self.tasks, code="dist.barrier()"), everyone)
        outcomes, failures = self._collect(self.tasks, everyone, Limit(_GRACE_S), lambda rank, text: None)
        return len(outcomes) == self.world_size and not failures

    def end_processes(self) -> None:
        """Kill every rank, so that a call which another thread is waiting for ends too."""
        server.wake_fork_server()  # it tells that a process has ended
        for member in [member for member in self._members if member.process.kill()]:
            member.process.join()

    def kill(self) -> None:
        """End every rank at once."""
        self.end_processes()
        self.forget()
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """Let go of the processes, which are another's in a process that was forked."""
        for member in self._members:
            member.close()
        self._members = []
        self._ended.clear()
        self._selector.close()
