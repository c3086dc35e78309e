"""CPU time that a test counts instead of measuring it."""


class CountedWork:
    """Seconds of CPU, as a subclass adds them up, and the longest stretch of them without a yield."""

    def __init__(self):
        self.seconds = self.longest = 0.0

    def watch(self, harness):
        """Let the controller go by this clock, and note the longest work without a yield to the loop."""
        sleep, began = harness.clock.sleep, 0.0

        async def noted(seconds):
            nonlocal began
            self.longest = max(self.longest, self.seconds - began)
            began = self.seconds
            await sleep(seconds)

        harness.clock.cpu = lambda: self.seconds
        harness.clock.sleep = noted
