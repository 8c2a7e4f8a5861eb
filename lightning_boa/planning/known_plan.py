"""A plan that is known before the first step, which the first steps check."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import hypot

from lightning_boa.planning.orchestration import (
    CONFIRMING_STEPS,
    FIRST_SETTLING_STEPS,
    MOST_EXCHANGES,
    Orchestration,
)
from lightning_boa.planning.passes import usual_pass
from lightning_boa.planning.profile import Profile
from lightning_boa.planning.rank_fits import rank_fits
from lightning_boa.planning.schedule import Schedule
from lightning_boa.planning.settings import OrchestrationSettings

CLEAR_DIFFERENCE = 0.1
CERTAIN_ERRORS = 3.0


@dataclass(frozen=True)
class KnownPlan(Orchestration):
    """The loop that begins with the plan of a profile.

    Where the first steps of a rank take clearly more or less than its ``known_fits`` say (a tenth, and three standard
    errors) the warm-up begins, unless ``measures_anew`` is False.
    """

    measures_anew: bool = True

    @classmethod
    def of(
        cls,
        profile: Profile,
        settings: OrchestrationSettings,
        first_step: int,
        *,
        measures_anew: bool = True,
    ) -> KnownPlan:
        """The start of a training with the plan of ``profile``, which was made for ``settings``."""
        return cls(
            settings=settings,
            first_step=first_step,
            schedule=Schedule.starting_with(profile.plan, first_step),
            phase="planned",
            round=0,
            exchanges=0,
            exchange_after=first_step + FIRST_SETTLING_STEPS + CONFIRMING_STEPS - 1,
            reason="the plan is that of the profile",
            refined=True,
            known_fits=profile.fits,
            measures_anew=measures_anew,
        )

    def _after_confirmation(self, first_free_step: int) -> Orchestration:
        if self.planned_measurement is None:
            if self.exchanges >= MOST_EXCHANGES:
                reason = "none of the first steps could be measured, so the profile's plan stays"
                return self._confirmed(reason, first_free_step)
            return replace(
                self,
                exchanges=self.exchanges + 1,
                exchange_after=first_free_step + CONFIRMING_STEPS - 1,
            )
        difference = self._difference()
        if difference is None:
            reason = "the first steps took as long as the profile says, so its plan stays"
            return self._confirmed(reason, first_free_step)
        if not self.measures_anew:
            reason = f"{difference}; its plan stays, since warmup=0 leaves nothing to measure anew"
            return self._confirmed(reason, first_free_step)
        anew = Orchestration.begin(self.settings, first_free_step)
        return replace(
            anew,
            schedule=self.schedule.then(first_free_step, anew.plan),
            row_caps=self.row_caps,
            reason=f"{difference}, so the warm-up measures anew",
        )

    def _confirmed(self, reason: str, first_free_step: int) -> Orchestration:
        values = {field.name: getattr(self, field.name) for field in fields(Orchestration)}
        return Orchestration(**{**values, "reason": reason})._after_confirmation(first_free_step)

    def _difference(self) -> str | None:
        """The rank whose steps differ most from what is expected, in words; None where none differs clearly."""
        differing = []
        measured = rank_fits(self.counted_records, self.settings.world_size)
        for rank, (then, now, share) in enumerate(
            zip(self.known_fits, measured, self.plan.batch_sizes, strict=True)
        ):
            rows = usual_pass(share, len(self.plan.passes_of(rank, share)))
            if then is None or now is None or rows not in now.batch_sizes:
                continue
            if rows not in then.batch_sizes:
                continue
            ratio = now.median(rows) / then.median(rows)
            error = hypot(now.median_error(rows), then.median_error(rows))
            if abs(ratio - 1) > max(CLEAR_DIFFERENCE, CERTAIN_ERRORS * error):
                words = (
                    f"rank {rank} takes {now.median(rows):.4g} s for {rows} rows,"
                    f" not the {then.median(rows):.4g} s of the profile"
                )
                differing.append((max(ratio, 1 / ratio), words))
        return max(differing)[1] if differing else None
