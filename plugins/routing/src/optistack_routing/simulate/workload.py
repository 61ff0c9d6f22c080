"""Sessions to replay: scripts of turns, drawn at random for as many sessions as the fleet is to serve."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session.

    ``prompt_tokens``  its whole input
    ``shared_tokens``  the head of it that is the head of the turn before, too
    ``output_tokens``  at least 1
    ``think_s``        pause between the end of the turn before and this one
    ``forks``          sub-agents that start with this turn and that the next one waits for
    """

    prompt_tokens: int
    shared_tokens: int
    output_tokens: int
    think_s: float
    forks: tuple[Script, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """A session's turns in order, at least one."""

    turns: tuple[Turn, ...]

    def requests(self) -> int:
        """Its turns and those of its sub-agents."""
        return len(self.turns) + sum(fork.requests() for turn in self.turns for fork in turn.forks)


@dataclass(frozen=True, slots=True)
class Workload:
    """Scripts, each as likely as the other for a session that starts.

    ``wide_share``  share of the sessions that send every turn ``width`` times at once, as an agent does that forks into
                    sub-agents over its own context; the next turn waits for all of them
    """

    scripts: tuple[Script, ...]
    wide_share: float = 0.0
    width: int = 8

    def draw(self, random: Random) -> tuple[Script, int]:
        """A session that starts: its script and its width."""
        return random.choice(self.scripts), self._width(random)

    def draw_running(self, random: Random) -> tuple[Script, int, int]:
        """A session found at a random moment: its script, its width, and the turn that it comes to next.

        Long scripts are found more often than they start, in proportion to their turns.
        """
        script = random.choices(self.scripts, weights=[len(script.turns) for script in self.scripts])[0]
        return script, self._width(random), random.randrange(len(script.turns))

    def _width(self, random: Random) -> int:
        return self.width if random.random() < self.wide_share else 1


def synthetic(random: Random, scripts: int = 64, *, mean_think_s: float = 15.0, fork_share: float = 0.02) -> Workload:
    """Coding agents after the figures of public traces: prompts of about 100k tokens that grow with each turn.

    First prompts are log-normal around 50k tokens, turns number 8 to 120, each adds 2k tokens in the mean and answers
    with 450, pauses are exponential, and one turn in 50 forks a sub-agent of a few turns over a 10k prompt.
    """
    return Workload(tuple(_script(random, mean_think_s, fork_share) for _ in range(scripts)))


def _script(random: Random, mean_think_s: float, fork_share: float) -> Script:
    prompt = int(min(250_000, random.lognormvariate(10.82, 0.5)))
    turns: list[Turn] = []
    shared = 0
    for number in range(random.randint(8, 120)):
        forks: tuple[Script, ...] = ()
        if number and random.random() < fork_share:
            forks = (_agent(random),)
        think_s = random.expovariate(1 / mean_think_s) if number else 0.0
        turns.append(Turn(prompt, shared, 1 + int(random.expovariate(1 / 450)), think_s, forks))
        shared = prompt
        prompt += int(random.expovariate(1 / 2000))
    return Script(tuple(turns))


def _agent(random: Random) -> Script:
    prompt, shared = 10_000, 0
    turns = []
    for number in range(random.randint(3, 12)):
        turns.append(Turn(prompt, shared, 1 + int(random.expovariate(1 / 220)), 4.0 if number else 0.0))
        shared = prompt
        prompt += int(random.expovariate(1 / 5000))
    return Script(tuple(turns))
