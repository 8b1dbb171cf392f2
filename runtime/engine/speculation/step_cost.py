"""Predicts the seconds that a step takes from its numbers of requests and rows. Fitted to measured steps."""

from __future__ import annotations

TRUST = 0.5  # how many steps the prior is worth
MEMORY = 0.99  # factor on the weight of older steps at each new one: about a hundred steps count
SURPRISE = 2.0
"""A step that took longer than this multiple of the expected time was held up, and counts as this multiple."""
UPWARDS = 0.2
"""Weight of a step that took longer than expected; one that took less has weight 1. So the fit follows the fast steps:
other processes can only make a step slower."""
WARM, SELDOM = 64, 4  # after WARM steps, only every SELDOM-th step without extra rows is used: a note takes 4 us


class Cost:
    """Predicts the seconds of a step as a + b * n_requests + c * n_extra, where n_extra is the number of rows beyond
    one per request. The coefficients are fitted to measured steps by least squares of the relative error. Older steps
    weigh less. While few steps have been measured, the coefficients stay close to their initial values (the prior)."""

    def __init__(self, a: float = 16.0, b: float = 1.0, c: float = 1.0) -> None:
        """a, b, c: initial values of the coefficients (the prior), in any unit: the first measured step scales them to
        seconds."""
        self._theta = self._prior = (a, b, c)
        self._n = self._n_plain = 0  # steps used; steps without extra rows seen
        self._sums = (0.0,) * 9  # the weighted sums that `_fit` needs

    @property
    def is_warm(self) -> bool:
        """Whether enough steps were measured for the fit."""
        return self._n > WARM

    @property
    def per_row(self) -> float:
        """Seconds of one extra row."""
        return self._theta[2]

    def step(self, n_requests: int, n_extra: int) -> float:
        """Seconds of a step."""
        a, b, c = self._theta
        return a + b * n_requests + c * n_extra

    def note(self, n_requests: int, n_extra: int, seconds: float) -> None:
        """Add a measured step."""
        self._n_plain += not n_extra
        if seconds <= 0 or (not n_extra and self._n_plain % SELDOM and self.is_warm):
            return
        if not self._n:
            a, b, c = self._prior
            scale = seconds / self.step(n_requests, n_extra)
            self._theta = self._prior = (a * scale, b * scale, c * scale)
        self._n += 1
        expected = self.step(n_requests, n_extra)
        weight = (1.0 if seconds <= expected else UPWARDS) / expected**2
        seconds = min(seconds, SURPRISE * expected)
        w, r, e, m = weight, n_requests, n_extra, MEMORY
        n, nr, ne, rr, re, ee, y, yr, ye = self._sums  # written out, as this runs in every step
        self._sums = (
            m * n + w, m * nr + w * r, m * ne + w * e, m * rr + w * r * r, m * re + w * r * e, m * ee + w * e * e,
            m * y + w * seconds, m * yr + w * r * seconds, m * ye + w * e * seconds)  # fmt: skip
        if self._n % 8 == 0:
            self._fit()

    def _fit(self) -> None:
        """Solve the normal equations, with the prior as one observation of each coefficient. Coefficients stay above 1
        % of the prior."""
        n, nr, ne, rr, re, ee, y, yr, ye = self._sums
        pa, pb, pc = self._prior
        ra, rb, rc = (TRUST / max(part, 1e-12) ** 2 for part in self._prior)
        n, rr, ee = n + ra, rr + rb, ee + rc
        y, yr, ye = y + ra * pa, yr + rb * pb, ye + rc * pc
        # Elimination of the symmetric positive definite system [n nr ne; nr rr re; ne re ee] (a b c) = (y yr ye).
        f, g = nr / n, ne / n
        rr, re, ee = rr - f * nr, re - f * ne, ee - g * ne
        yr, ye = yr - f * y, ye - g * y
        h = re / rr
        c = (ye - h * yr) / (ee - h * re)
        b = (yr - re * c) / rr
        a = (y - nr * b - ne * c) / n
        self._theta = max(a, 0.01 * pa), max(b, 0.01 * pb), max(c, 0.01 * pc)
