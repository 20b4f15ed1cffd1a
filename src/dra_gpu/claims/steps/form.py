"""What all steps have in common: how they stand in the journal, and where they take effect."""

import msgspec

Place = tuple[str, int]
"""A GPU by its UUID, and the memory units of a partition of it as a bit mask; 0 for the GPU itself."""


class Form(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="step"):
    """Form on the wire: an object whose `step` names its kind; unknown fields are ignored."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Where it takes effect; nowhere on a GPU for a step that writes a file."""
        return ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs whose state it changes."""
        return tuple(gpu for gpu, _ in self.places)
