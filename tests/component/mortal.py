"""An object whose asynchronous calls have a boundary on either side, at which somebody's fate may be to end."""

import inspect


class Mortal:
    """Passes every call on to its target, and tells the fate (`pass_boundary`) before and after each awaited one."""

    def __init__(self, target, fate) -> None:
        self._target = target
        self._fate = fate

    def __getattr__(self, name):
        value = getattr(self._target, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*arguments, **options):
            self._fate.pass_boundary()
            answer = await value(*arguments, **options)
            self._fate.pass_boundary()
            return answer

        return call
