"""Faults of a broker while rounds of deliveries go on: it is killed, stopped and started."""

from __future__ import annotations

import random
import threading
from collections import Counter

from firebird_cdc.demo.kafka import KafkaBroker

_KILLED, _STOPPED = "killed and started", "stopped for a while"
WEATHER = {_KILLED, _STOPPED}


class Weather(threading.Thread):
    """Kills, stops and starts the broker by a seed until it is told to end. COUNTS: what it did."""

    def __init__(
        self, broker: KafkaBroker, seed: str, counts: Counter[str], pause_s: float
    ) -> None:
        super().__init__(name="weather")
        self._broker = broker
        self._chance = random.Random(f"{seed}/weather")
        self._counts = counts
        self._pause_s = pause_s
        self._ending = threading.Event()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        events = [self._kill, self._stand_still, self._stand_still]
        self._chance.shuffle(events)
        try:
            while not self._ending.wait(self._pause_s * self._chance.uniform(0.7, 1.3)):
                events.append(events.pop(0))
                events[-1]()
        except BaseException as error:
            self.trouble = error

    def _kill(self) -> None:
        self._broker.kill()
        self._broker.start()
        self._counts[_KILLED] += 1

    def _stand_still(self) -> None:
        with self._broker.stopped():
            self._ending.wait(self._chance.uniform(0.2, 2.5))
        self._counts[_STOPPED] += 1

    def end(self) -> None:
        """Leave the broker up and end."""
        self._ending.set()
        self.join()
        if self.trouble is not None:
            raise self.trouble
