"""A tree of thought: combine numbers to a target. Fork to propose steps, keep the distinct ones, fork again.

    python examples/agents/tree_of_thought.py [--model MODEL | --socket PATH]

Branches share the KV of their prefix in the radix tree: a fork sends no text and computes no token twice.
"""

import re

import banyan as bn
from common import Saved, choose_runtime, verdict

PUZZLES = [((4, 6, 9), 33), ((12, 5, 3), 180), ((7, 8, 20), 167)]
WIDTH = 16  # proposals of each branch


def step(text: str, numbers: tuple[int, ...]) -> tuple[int, ...] | None:
    """The numbers after a step such as "4*6", its result last; None if the step is not possible."""
    match = re.fullmatch(r"(\d+)([+*])(\d+)", text.strip())
    if not match:
        return None
    a, b, rest = int(match[1]), int(match[3]), list(numbers)
    for used in (a, b):
        if used not in rest:
            return None
        rest.remove(used)
    return (*rest, a * b if match[2] == "*" else a + b)


def propose(state, numbers, target):
    """Fork `state` with one sampled proposal per branch. Does not wait for the proposals."""
    state += bn.user(f"Numbers: {' '.join(map(str, numbers))}\nTarget: {target}\nPropose a step.")
    branches = state.fork(WIDTH)
    branches += lambda i: bn.assistant(bn.gen("step", max_tokens=16, temperature=1.0, seed=i))
    return branches


def possible(branches, numbers):
    """The distinct, possible proposals: (text, branch, the numbers after it)."""
    different = {branch["step"]: branch for branch in branches}
    return [(text, branch, after) for text, branch in different.items() if (after := step(text, numbers))]


@bn.function
def solve(s, numbers, target):
    frontier = [((), s, numbers)]
    while frontier:
        asked = [(steps, left, propose(state, left, target)) for steps, state, left in frontier]
        paths = [
            ((*steps, text), branch, after)
            for steps, left, branches in asked
            for text, branch, after in possible(branches, left)
        ]
        print("  ", "   ".join(f"{', '.join(steps)} = {after[-1]}" for steps, _, after in paths))
        for steps, _, after in paths:
            if after[-1] == target:
                return steps
        frontier = [path for path in paths if len(path[2]) > 1]
    return ()


def main() -> None:
    saved, right = Saved(), []
    for numbers, target in PUZZLES:
        print(f"Reach {target} from {', '.join(map(str, numbers))}.")
        state = solve.run(numbers, target)
        print(" ", f"{', then '.join(state.ret_value)}" if state.ret_value else "not found")
        right.append(bool(state.ret_value))
        saved.add(state)
    print(saved)
    verdict(right)


if __name__ == "__main__":
    choose_runtime(__doc__)
    main()
