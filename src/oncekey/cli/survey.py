"""What a sample of the records says about all of them: how many, how fast, and what is overdue.

Pure. Ids are digests, so a sample that was chosen by them stands for the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from oncekey._core.record import Record, State
from oncekey._core.values import value
from oncekey.cli.output import duration
from oncekey.stores.checks import Finding, Size, advice

LAG_S_MAX = 600.0
"""Sweepers come round every minute; this long, nobody sweeps."""
FUTURE_S_MIN = 1.0
HOUR_S, DAY_S = 3_600.0, 86_400.0
GROWTH_RECORDS_MIN = 10


@value
class Survey:
    """Some records, or all; and the few that are overdue for longest."""

    records: Sequence[Record]
    whole: bool
    overdue: Sequence[Record]
    size: Size | None

    @property
    def total(self) -> int | None:
        """How many there are, about; None if nothing tells."""
        if self.whole:
            return len(self.records)
        known = self.size.records if self.size else None
        return None if known is None else max(known, len(self.records))

    def findings(self) -> Iterator[Finding]:
        yield self._count()
        if self.size is not None and self.size.bytes is not None:
            yield Finding("size", self._bytes(self.size.bytes))
        yield self._growth()
        yield self._swept()
        yield self._abandoned()
        yield self._unknown()
        yield self._times()

    # ----------------------------------------------------------------------------------- how much

    def _count(self) -> Finding:
        states = Counter(record.state for record in self.records)
        if self.whole:
            seen = ", ".join(f"{states[state]:,} {state}" for state in State)
            return Finding("records", f"{len(self.records):,}: {seen}")
        shares = ", ".join(
            f"{100 * states[state] / len(self.records):.3g} % {state}" for state in State
        )
        total = "many" if self.total is None else f"about {self.total:,}"
        return Finding("records", f"{total}; of a sample of {len(self.records):,}: {shares}")

    def _bytes(self, size: int) -> str:
        note = f" ({self.size.note})" if self.size and self.size.note else ""
        each = f", {size // self.total:,} for each record" if self.total else ""
        return f"{size:,} bytes{each}{note}"

    def _growth(self) -> Finding:
        """New records for each second of the last hour and of the last day."""
        ages = [record.age_s for record in self.records]
        if self.total is None or len(ages) < GROWTH_RECORDS_MIN:
            return Finding("growth", "too few records to tell" if self.whole else "not known")
        scale = self.total / len(ages)
        rates = []
        for window_s, name in ((HOUR_S, "hour"), (DAY_S, "day")):
            lasted_s = min(window_s, max(max(ages), 1.0))
            rate = scale * sum(age <= lasted_s for age in ages) / lasted_s
            rates.append(f"{rate:,.3g} new records/s in the last {name}")
        return Finding("growth", ", ".join(rates))

    # ------------------------------------------------------------------------------ what is overdue

    def _seen(self) -> list[Record]:
        ids = {record.id: record for record in (*self.records, *self.overdue)}
        return list(ids.values())

    def _swept(self) -> Finding:
        expired = [-record.expires_in_s for record in self._seen() if record.expired]
        if not expired:
            return Finding("sweep", "nothing is expired")
        seen = f"the longest expired, since {duration(max(expired))}"
        if max(expired) > LAG_S_MAX:
            return advice(
                "sweep",
                f"not swept: {seen}",
                "expired records take room, and slow down whoever looks for the oldest",
                "Run `oncekey sweep --watch`, or see whether applications that sweep are running",
            )
        return Finding("sweep", seen)

    def _abandoned(self) -> Finding:
        """Those that only a retry runs again are nobody's concern until it comes."""
        lapsed = [record for record in self._seen() if record.lapsed and not record.expired]
        waiting = [-record.lease_left_s for record in lapsed if record.recovery != "rerun"]
        seen = f"{len(lapsed):,} lapsed, {len(waiting):,} of them for a recoverer"
        if waiting and max(waiting) > LAG_S_MAX:
            return advice(
                "abandoned",
                f"{seen}, the longest since {duration(max(waiting))}",
                "what was begun is not finished, and nobody finishes it",
                "Run `oncekey recover MODULE:APP`",
            )
        return Finding("abandoned", seen if self.whole else f"{seen}, in the sample")

    def _unknown(self) -> Finding:
        unknown = sum(record.state is State.UNKNOWN for record in self._seen())
        if unknown:
            return advice(
                "unknown",
                f"{unknown:,}{'' if self.whole else ' in the sample'}",
                "nobody knows how they ended, and their retries are refused",
                "Run `oncekey list --unknown`, find out, then `oncekey resolve`",
            )
        where = "none" if self.whole else "none in the sample; `oncekey count` counts all"
        return Finding("unknown", where)

    def _times(self) -> Finding:
        ahead = [-record.age_s for record in self._seen() if record.age_s < -FUTURE_S_MIN]
        overlong = sum(
            record.state is State.RUNNING and record.lease_left_s > 1.001 * record.lease_s + 1
            for record in self._seen()
        )
        if ahead or overlong:
            most = f", by up to {duration(max(ahead))}" if ahead else ""
            return advice(
                "clock jumps",
                f"records dated ahead of the store's clock: {len(ahead) + overlong:,}{most}",
                "it was set back; leases are cut to their length, but expiry comes later",
                "Keep the store's clock by NTP, which slews instead of stepping",
            )
        return Finding("clock jumps", "no record is dated ahead of the store's clock")
