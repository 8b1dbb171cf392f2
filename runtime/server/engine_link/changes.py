"""The life of a server's engines: what they report, what happens when they are ready or die, and how they are added,
drained, scaled and given other weights while the server runs."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from banyan.runtime.config import Config, check
from banyan.runtime.errors import BanyanError, ConfigError, ConnectFailed, EngineLost, from_code
from banyan.runtime.fleet.placement import CoreShare
from banyan.runtime.fleet.scaling import FleetLoad, LoadScaler
from banyan.runtime.model.images import image_spec, same_processor
from banyan.runtime.model.spec import name_of, resolve
from banyan.runtime.protocol import wire
from banyan.runtime.server.engine_link.adapters import AdapterNames
from banyan.runtime.server.engine_link.link import NO_PROCESS
from banyan.runtime.server.engine_link.questions import OURSELVES, Questions
from banyan.runtime.server.engine_link.ray_engines import RayEngines
from banyan.runtime.server.engine_link.recovery import Death
from banyan.runtime.server.engine_link.remote import RemoteLink
from banyan.runtime.server.engine_link.replica_process import ReplicaProcess, Then
from banyan.runtime.server.engine_link.replicas import Replicas
from banyan.runtime.server.engine_link.requests import EngineRequests
from banyan.runtime.server.policy.tenants import Tenants
from banyan.runtime.server.programs.programs import Programs
from banyan.runtime.server.telemetry.observer import Observer
from banyan.runtime.server.text.images import Images
from banyan.runtime.server.text.tokenizer import Files, same_tokenizer

MAX_FAILED_STARTS = 2
"""If this many engines of a replica die one after another before they are ready, the replica is abandoned; see
EngineChanges.died."""

LOADING = b"loading"
"""The fingerprint of an engine whose weights are not known yet. It gets no requests."""


class ServerLoop(Protocol):
    """The server, as its engines need it. is_started: whether it has reported that it has started. call_soon: makes a
    call on the loop later. offload: runs `work`, on a thread if it is long, and then `then` with its result or
    exception. make_poller: called when an engine was started or ended. notice: tells people what a starting engine has
    to say. engine_ready: called when an engine can serve. fail: ends the server."""

    @property
    def is_started(self) -> bool: ...
    def log(self, level: Literal["quiet", "info", "debug"], text: str) -> None: ...
    def call_soon(self, call: Callable[[], None]) -> None: ...
    def offload(
        self, client: Hashable, n_chars: int, work: Callable[[], Any], then: Callable[[Any], None],
        has_images: bool = False,
    ) -> None: ...  # fmt: skip
    def make_poller(self) -> None: ...
    def notice(self, text: str) -> None: ...
    def engine_ready(self, ready: wire.Ready) -> None: ...
    def fail(self, error: BanyanError) -> None: ...


class EngineChanges:
    """The life of a server's engines: takes their reports, replaces those that die, adds and drains engines, scales
    their number by the load, and changes their weights.

    name       the name of the model, or during a change of weights of the old one. (A link to the directory may lead to
               another model since.)
    directory  the directory of the model; during a change of weights, that of the old one
    roll       the change of weights in progress; None if there is none
    n_deaths   how many engines have died

    images: the images of prompts; a str: why the model takes none. ray: starts engines on a Ray cluster; None: the
    server starts engines itself, or they join from other machines.
    """

    def __init__(
        self,
        server: ServerLoop,
        config: Config,
        directory: Path,
        replicas: Replicas,
        requests: EngineRequests,
        questions: Questions,
        *,
        programs: Programs,
        adapters: AdapterNames,
        tenants: Tenants,
        images: Images | str,
        observer: Observer,
        ray: RayEngines | None,
    ) -> None:
        self._server, self._config, self.directory = server, config, directory
        self.name = name_of(directory)
        self._replicas, self._requests, self._questions, self.programs = replicas, requests, questions, programs
        self._adapters, self._tenants, self._images = adapters, tenants, images
        self._observer, self._ray = observer, ray
        self._scaler = LoadScaler(config.min_replicas, config.max_replicas) if config.max_replicas else None
        self._awaited: deque[Then] = deque()  # callbacks of engines that have not joined yet
        self.roll: WeightsRoll | None = None
        self.n_deaths = 0

    def change(self, ask: wire.Ask, then: Then) -> None:
        """Add or drain an engine, or change the weights, as `ask` says. then: called at the end of the change, with ""
        or an error. ConfigError: the change is not possible now."""
        if self.roll is not None:
            raise ConfigError(f"the weights are being changed to {self.roll.model}; wait until all engines have them")
        if ask.what == "roll":
            self._look_at_weights(ask.path, then)
        elif ask.what == "drain":
            self._replicas.drain(ask.name, then)
            self._server.log("info", f"engine {ask.name} is drained")
            self._end_drained()
        elif self._ray is not None:
            self._awaited.append(then)
            self._ray.add()
        else:
            check(msgspec.structs.replace(self._config, replicas=len(self._replicas) + 1))
            self._server.log("info", f"engine {self._add(then).name} is added")

    def _add(self, then: Then) -> ReplicaProcess:
        try:
            replica = self._replicas.add(then)
        except NO_PROCESS as e:
            raise ConfigError(f"no engine can be started now: {e}") from e
        self._questions.engine_adapters.reload(replica)
        self._server.make_poller()
        return replica

    def _started(self, replica: ReplicaProcess) -> None:
        """Tell the scaling how long an engine, which is ready, took to start."""
        if self._scaler is not None and replica.link.n_starts == 1:
            self._scaler.started(time.monotonic() - replica.began)

    def remove(self, replica: ReplicaProcess, error: str = "") -> None:
        """End an engine for good, if that has not happened. If all engines that remain with the same weights are being
        drained, one of them takes programs again. error: given to those who wait for the engine; "": none."""
        if replica not in self._replicas:
            return
        self._server.log("info", f"engine {replica.name} is gone")
        others = [one for one in self._replicas if one is not replica]
        for one in others:
            like = (other for other in others if other.weights == one.weights)
            if not (one.is_rolled or any(other.is_open for other in like)):
                self._requests.routes.lost(one)  # nothing is placed on it until it is added again
                one.is_open = True
                one.settle(f"engine {replica.name} is gone, so engine {one.name} stays")
        self._replicas.remove(replica, error)
        self._questions.fail(replica.name, f"engine {replica.name} is gone")
        self._server.make_poller()

    def go_on(self) -> None:
        """Remove the drained engines that have nothing left to do, and take the next step of a change of weights if it
        is possible now. Called after events that may make it possible, such as the end of a program."""
        self._end_drained()
        if self.roll is not None:
            self.roll.go_on()

    def _end_drained(self) -> None:
        for replica in self._replicas.drained:
            self.remove(replica)

    # ---- the life of an engine -------------------------------------------------------------------------------------

    def host_joined(self, name: str) -> RemoteLink:
        """Returns the connection to use for the engine host `name`, which has connected: the connection of an engine
        that is gone, else that of a new replica. Raises ConnectFailed if the server cannot take another engine now."""
        replica = next((one for one in self._replicas if one.link.is_gone), None)
        if replica is None:
            try:
                replica = self._replicas.join()
            except ConfigError as e:
                raise ConnectFailed(e.message) from e
            self._questions.engine_adapters.reload(replica)
            self._server.make_poller()
        if self._awaited:  # also if the host takes the place of a lost one, as no other may come for that
            replica.then.append(self._awaited.popleft())
        self._server.log("info", f"an engine of {name} joined")
        assert isinstance(replica.link, RemoteLink)  # no other connection can be gone
        return replica.link

    def handle(self, replica: ReplicaProcess, report: wire.EngineReport) -> Iterable[None]:
        """Handle a report of an engine. Returns steps that the caller still has to run, one by one."""
        match report:
            case wire.Step():
                self._observer.step(report)
                if report.finished and not replica.is_open:
                    self._server.call_soon(self.go_on)  # not now: its link is being read
                return self._requests.take(report, replica)
            case wire.EnginePong():
                self._requests.routes.measured(report.fixed, report.row)
            case wire.OtherWork():
                self._requests.routes.set_others(replica, report)
            case wire.TreeEvents() if replica.link.ready is not None:
                return self._requests.routes.heard(replica, report, replica.link.ready.page)
            case wire.Failed(program=-1):
                replica.error = replica.error or from_code(report.code, report.message)
            case wire.Failed():
                self._requests.refused(report, replica)
            case wire.Answer():
                self._questions.receive(report, replica.name)
            case wire.WantImages(images=digests) if isinstance(self._images, Images):
                for digest in digests:
                    work = partial(self._images.pixels, digest)
                    then = partial(self._send_pixels, replica, replica.link.pid, digest)
                    self._server.offload(replica.name, sys.maxsize, work, then, has_images=True)
            case wire.Notice():
                self._server.notice(report.text)
            case wire.Ready():
                self._engine_ready(replica, report)
            case wire.Exported():
                self._requests.routes.pulls.exported(report)
            case wire.Pulled():
                self._requests.routes.pulls.pulled(report)
                if not all(one.is_open for one in self._replicas):
                    self._server.call_soon(self.go_on)
        return ()

    def _send_pixels(
        self, replica: ReplicaProcess, pid: int, digest: bytes, pixels: wire.ImagePixels | Exception
    ) -> None:
        """Send an engine the image that it asked for, or why there is none, if the engine still exists. An engine asks
        for an image only once, so without an answer the requests that need the image would wait for ever."""
        if isinstance(pixels, Exception):
            traceback.print_exception(pixels)
            pixels = wire.ImagePixels(digest, error=f"the server failed on the image: {pixels!r}")
        if replica.link.pid == pid:
            replica.link.send(pixels)

    def _engine_ready(self, replica: ReplicaProcess, ready: wire.Ready) -> None:
        others = [one for one in self._replicas if one is not replica and one.is_ready]
        roll = self.roll
        is_starting = roll is not None and replica is roll.starting
        is_rolled = roll is not None and roll.is_first(replica)
        before = b"" if is_starting else replica.weights
        is_needed = others or (isinstance(replica.link, RemoteLink) and len(self.programs))
        if is_needed and (why := self._differs(ready, before, is_rolled)):
            why = f"engine {replica.name} {why}"
            self._server.log("quiet", why)
            replica.link.refuse()
            if is_starting and roll is not None:
                self._server.call_soon(partial(roll.fail, why))
            elif len(self._replicas) == 1 and isinstance(replica.link, RemoteLink):
                replica.link.give_up(why)  # programs wait for another
            else:
                self._server.call_soon(partial(self.remove, replica, why))
            return
        replica.n_failed_starts, replica.kv = 0, ready.kv
        self._started(replica)
        if replica.is_prefill and ready.kv is None:
            replica.is_prefill = False  # what it computes could not be pulled
            self._server.log("quiet", f"engine {replica.name} takes programs, as the KV of this model cannot be moved")
        replica.weights = ready.weights
        replica.cores = CoreShare(replica.link.host, ready.threads, ready.n_cores) if ready.threads else None
        if is_rolled or not others:
            self.use_weights(ready)
        if not others:
            for name, digest in ready.adapters.items():
                self._adapters.add(name, self._config.adapters[name], digest)
        self.programs.generator.set_context(ready.max_context)
        self._requests.routes.measured(0.0, ready.step_seconds / self._config.step_tokens)
        of = f"engine {replica.name}: " if len(self._replicas) > 1 else ""
        for line in ready.report:
            self._server.log("info", of + line)
        if len(self._replicas) > 1:  # the placement of programs needs to know what their trees hold
            for one in self._replicas:
                one.link.listen()
        replica.settle()
        self.go_on()
        self._server.engine_ready(ready)

    def _differs(self, ready: wire.Ready, before: bytes, is_rolled: bool) -> str:
        """Returns why a new engine cannot run the programs of the running engines, as the rest of a sentence; "" if it
        can.

        ready: the new engine's report. before: the weights that the new engine must have; b"": those of the running
        engines. is_rolled: the engine is the first one with new weights, so its weights may differ."""
        mine = self._replicas.standard
        if not is_rolled and ready.weights != (before or mine.weights):
            return "has weights that differ from the running engines'; its files were changed, or are another model's"
        for field, what in (("page", "page size"), ("max_context", "context"), ("layout", "dtype")):
            if (its := getattr(ready, field)) != (ours := getattr(mine, field)):
                return f"has a different {what} from the running engines: {its}, not {ours}"
        for name, digest in ready.adapters.items():  # it loaded them by itself, as no engine was ready yet
            if name in self._adapters and self._adapters.digest(name) != digest:
                return f"has files of adapter {name!r} that differ from the running engines'"
        return ""

    def refuse(self, replica: ReplicaProcess, why: str) -> None:
        """End a ready engine that cannot run the programs of the others. The others take over its requests. Later calls
        do nothing."""
        if replica.link.ready is None:
            return
        self._server.log("quiet", why)
        replica.link.refuse()
        self._requests.replay(replica, Death(why, is_blameless=True, was_ready=False))
        self._server.call_soon(partial(self.remove, replica, why))  # not now: its link is being read

    def start_again(self, replica: ReplicaProcess) -> None:
        """Start an engine in place of the replica's current engine. If no process can be started now, the next
        heartbeat tries again."""
        is_first = replica.link.life >= 0
        try:
            replica.link.start()
        except NO_PROCESS as e:
            if is_first:
                self._server.log("quiet", f"engine {replica.name} cannot be started now: {e}; trying again")
        self._server.make_poller()

    def died(self, replica: ReplicaProcess) -> None:
        """Start another engine in place of a dead one, and send the dead engine's requests again.

        An engine that has died several times before it was ready is not replaced. The server ends if that was the last
        engine, or if an engine dies before the server has reported its start. An engine on another machine that has
        lost its connection is removed if other engines can take its requests. Otherwise the server waits for another
        engine."""
        link = replica.link
        link.receive(partial(self.handle, replica))  # reports sent before it died
        while replica.error is None and link.await_report():
            link.receive(partial(self.handle, replica))
        death, was_ready = link.death(), link.ready is not None
        self.n_deaths += 1
        replica.n_failed_starts += not (was_ready or death.is_blameless)
        error, replica.error = replica.error, None
        why = "" if error is None else f": {error.message}"
        whose = f" of {link.host}" if link.host else ""
        which = f"engine {replica.name}: " if len(self._replicas) > 1 else ""
        lost = EngineLost(f"the engine process{whose} died ({which}{death.how}){why}")
        self._questions.fail(replica.name, lost.message)
        is_hopeless = replica.n_failed_starts >= MAX_FAILED_STARTS
        roll = self.roll
        is_rolled = roll is not None and replica is roll.starting
        if is_hopeless and roll is not None and is_rolled:
            roll.fail(lost.message)
            return
        if isinstance(link, RemoteLink):
            others = [one for one in self._replicas if one is not replica and one.is_open]
            has_others = any(one.weights == replica.weights for one in others)
            if is_rolled:  # no other engine has the new weights, and none gets them while the roll waits for this one
                has_others = any(one.is_ready for one in others)
            if (link.is_gone or is_hopeless) and has_others:
                self._server.log("quiet", lost.message)
                link.refuse()  # its requests are not placed on it again
                self._requests.replay(replica, death)
                self.remove(replica, lost.message)
                return
            if is_hopeless:
                link.dismiss(lost.message)
                replica.n_failed_starts = 0
        elif not self._server.is_started or (is_hopeless and len(self._replicas) == 1):
            error = error or lost
            self._requests.fail_all(error.message)
            self._server.fail(error)
            return
        elif is_hopeless:
            self._server.log("quiet", f"{lost.message}; no other is started in place of engine {replica.name}")
            self.remove(replica, lost.message)
            self.go_on()
            return
        self._server.log("quiet", f"{lost.message}; {'waiting for' if link.is_gone else 'starting'} another")
        self.start_again(replica)
        self._questions.engine_adapters.reload(replica)
        self._requests.replay(replica, death)
        self.go_on()

    # ---- other weights ---------------------------------------------------------------------------------------------

    def _look_at_weights(self, model: str, then: Then) -> None:
        """Find the model `model` on a thread, and then start to change all engines to its weights. then: called at the
        end of the change, with "" or an error."""

        def start(found: Path | Exception) -> None:
            try:
                if isinstance(found, Exception):
                    raise found
                if self.roll is not None:
                    raise ConfigError(f"the weights are being changed to {self.roll.model}")
                self._start_roll(found, then)
            except Exception as e:
                then(e.message if isinstance(e, BanyanError) else repr(e))

        self._server.offload(OURSELVES, sys.maxsize, partial(self._find_weights, model), start)

    def _find_weights(self, model: str) -> Path:
        """The directory of `model`, which is to replace the current model. Runs on a thread. Raises if `model` cannot
        replace it, for example because its tokenizer differs."""
        directory = resolve(model)
        new, now = Files.read(directory), Files.read(self.directory)
        is_same = (new.tokenizer, new.template) == (now.tokenizer, now.template)
        if not (is_same and same_tokenizer(directory, self.directory)):
            raise ConfigError(
                f"{model} uses a different tokenizer or chat template from {self.name}; start another server"
            )
        if isinstance(self._images, Images):
            spec = image_spec(directory, new.config)
            if spec != self._images.spec or not same_processor(directory, self.directory):
                raise ConfigError(f"{model} uses a different image processor from {self.name}; start another server")
        return directory

    def use_weights(self, ready: wire.Ready) -> None:
        """Begin programs on the weights of a ready engine from now on."""
        self._tenants.set_weights(ready.weights)
        self._requests.routes.weights, self._replicas.standard = ready.weights, ready

    def _start_roll(self, directory: Path, then: Then) -> None:
        """Start to change all engines, one after the other, to the weights of the model in `directory`. then: called at
        the end, with "" or an error. ConfigError: the change is not possible now."""
        before = self._replicas.model
        self._replicas.model = str(directory)
        try:
            self.roll = WeightsRoll(
                self, self._replicas, self._requests, directory, before or str(self.directory), then
            )
        except BaseException:
            self._replicas.model = before
            raise
        self._server.log("info", f"the weights are being changed to {self.roll.model}")

    def end_roll(self, roll: WeightsRoll, error: str = "") -> None:
        """End the change of weights. error: why it failed; "": all engines have the new weights."""
        self.roll = None
        if error:
            self._replicas.model = roll.before
            self._server.log("info", f"the weights are not changed: {error}")
        else:
            self.directory, self.name = roll.directory, roll.name
            if isinstance(self._images, Images):
                self._images.move(roll.directory)  # the one before may be deleted now
            self._server.log("info", f"all engines have {roll.model}")
        roll.then(error)

    def restart(self, replica: ReplicaProcess, model: str) -> None:
        """Replace an engine by one that has other weights."""
        replica.link.model = model
        self._questions.fail(replica.name, f"engine {replica.name} gets other weights")
        self.start_again(replica)
        self._questions.engine_adapters.reload(replica)

    def add_for_roll(self) -> ReplicaProcess:
        """Start one more engine, with the new weights. ConfigError: it cannot be started."""
        if self._config.replicas == 0 or self._ray is not None:
            raise ConfigError("the only engine is on another machine; let another one join first")
        return self._add(lambda error: None)

    # ---- load ------------------------------------------------------------------------------------------------------

    def scale(self) -> None:
        """Add or remove an engine, if the load requires it and the number of engines is not fixed. Called at each
        heartbeat."""
        if self._scaler is None or self.roll is not None:
            return
        counts = self._observer.goodput.counts
        n_done = counts["requests"] + counts["programs"]
        takers = [one for one in self._replicas if one.is_open and one.is_ready]
        n_coming = sum(one.is_open and not one.is_ready for one in self._replicas) + len(self._awaited)
        n_good = counts["good_requests"] + counts["good_programs"]
        queued = self._requests.routes.fleet.queued_seconds
        load = FleetLoad(len(takers), n_coming, queued, n_done, n_done - n_good)
        change = self._scaler.decide(time.monotonic(), load)
        if not change:
            return

        def then(error: str) -> None:
            if error:
                self._server.log("quiet", f"the number of engines is not changed: {error}")

        try:
            if change > 0:
                self._server.log("info", f"{queued:.1f} s of work are queued for {len(takers)} engines; adding one")
                self.change(wire.Ask(0, "add"), then)
            else:
                # An engine that takes prompts only comes last: it has no requests of its own, however useful it is.
                least = min(takers, key=lambda one: (one.is_prefill, one.n_running))
                self._server.log("info", f"engine {least.name} is not needed; draining it")
                self._replicas.drain(least.name, then)
                self._end_drained()
        except BanyanError as e:
            then(e.message)


class WeightsRoll:
    """A change of weights while the server runs: its engines are replaced one at a time.

    A program keeps the weights with which it began. New programs begin with the new weights as soon as an engine has
    loaded them. So the last engine with the old weights stays until all programs that began with the old weights have
    ended. If there is only one engine, a second one is added first.

    directory, model  the directory of the new model
    name              its name, at the beginning of the change
    before            the model before the change
    then              to be called at the end of the change, with "" or an error
    starting          the engine that loads the new weights now; None: no engine loads, and the next one is being
                      emptied
    """

    def __init__(
        self,
        changes: EngineChanges,
        replicas: Replicas,
        requests: EngineRequests,
        directory: Path,
        before: str,
        then: Then,
    ) -> None:
        """Raises ConfigError if an engine is not ready or is being drained, or if a second engine is needed and cannot
        be added."""
        self._changes, self._replicas, self._requests = changes, replicas, requests
        self.directory, self.model, self.before, self.then = directory, str(directory), before, then
        self.name = name_of(directory)
        self._emptying: ReplicaProcess | None = None
        self._extra: ReplicaProcess | None = None
        self.starting: ReplicaProcess | None = None
        if not all(one.is_open and one.is_ready for one in replicas):
            raise ConfigError(
                "an engine starts, waits for its machine or is drained; change the weights when all are ready"
            )
        # engines may differ in their weights, if an earlier change stopped half-way
        self._newest = newest = requests.routes.weights
        self._left = sorted(replicas, key=lambda one: one.weights == newest)
        self._old = b""  # the weights of the engine that is being replaced
        if len(replicas) == 1:
            self._extra = self.starting = changes.add_for_roll()
            self._extra.weights = LOADING
        self.go_on()

    def is_first(self, replica: ReplicaProcess) -> bool:
        """Whether an engine, which may have joined during the change, is the first that has loaded the new weights."""
        is_known = self._requests.routes.weights != self._newest
        has_joined = replica.link.model == self.model and not replica.weights
        return not is_known and (replica is self.starting or has_joined)

    def go_on(self) -> None:
        """Do the steps of the weight change that are possible now. Called whenever an engine or a program has changed
        in a way that may make a step possible."""
        there = [*self._replicas]  # replicas that are not in this list were lost
        self._left = [one for one in self._left if one in there]
        self._emptying = self._emptying if self._emptying in there else None
        self.starting = self.starting if self.starting in there else None
        new = self._requests.routes.weights  # those of `starting`, if it is ready
        if self.starting is not None:
            if not self.starting.is_ready:
                return
            self._left = [one for one in self._left if one.weights != new]
            self.starting = None
        if self._extra is not None and not any(one.weights == new for one in there):
            self._give_up(there[0])
            return
        if (one := self._emptying) is None:
            if not self._left:
                self._changes.end_roll(self)
                return
            one = self._emptying = self._left.pop(0)
            one.is_rolled, self._old = True, one.weights
            if any(other.weights == self._old and other.is_open for other in self._replicas if other is not one):
                self._requests.vacate(one)
        is_last = one.is_open
        if not one.is_empty or (is_last and self._changes.programs.n_on(self._old)):
            return
        self._emptying, one.is_rolled = None, False
        if self._extra is not None:
            self._changes.remove(one)
            self.go_on()
            return
        self._requests.routes.lost(one)
        one.is_open, one.weights = True, LOADING
        self.starting = one
        self._changes.restart(one, self.model)

    def _give_up(self, last: ReplicaProcess) -> None:
        """End the change of weights without success: the engine that was added for it was the only one with the new
        weights, and is lost. last: the engine that remains, with the old weights. New programs use these again."""
        last.is_rolled = False
        if last.link.ready is not None:
            self._changes.use_weights(last.link.ready)
        self._changes.end_roll(self, "the engine that had the new weights is gone")

    def fail(self, why: str) -> None:
        """End the change, because the engine that loads the new weights cannot start. That engine is restarted with the
        old weights, or removed if it was added for the change."""
        if (one := self.starting) is None:  # it failed in the same round of the loop for another reason
            return
        self.starting = None
        if one is self._extra:
            self._changes.remove(one)
        else:
            one.n_failed_starts = 0
            one.weights = self._old
            self._changes.restart(one, self.before)
        self._changes.end_roll(self, why)
