"""Several documents in one sequence: a technique that needs no ranks, since one device has it too.

A short document does not fill a sequence, so several are packed into it, each closed by a token of its own. What stands
before that token is none of the next one's business: a query meets the keys of its own document alone. Rotary angles
stay as they are, since within a document differences of positions do.

trainer = Trainer(model, config, mesh=make_mesh(cp=4), apply=(context("ring"), packed(0), replicate()))
"""

from __future__ import annotations

from torch import Tensor

from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder
from course_lib.parallel.sequence.shared import Documents
from course_lib.training.setup import Setup, Technique


def packed(end: int) -> Technique:
    """Attention does not look beyond the token `end` that closes a document.

    Cost: under `context` an all-gather of the tokens' ends, a byte each; nothing else changes its way.
    Source: Llama Team 2024, The Llama 3 Herd of Models, section 3.2 (a mask between the documents of a sequence).
    Raises: ValueError for another model than a `Decoder`, and in a pipeline, whose first stage alone sees tokens.
    """

    def apply(setup: Setup) -> None:
        setup.begin("packed")
        model = setup.model
        if not isinstance(model, Decoder):
            rule, way_out = "it replaces attention where a Decoder mixes positions", "give a Decoder"
            raise ValueError(four_parts("packed", f"a {type(model).__name__}", rule, way_out))
        if (pp := setup.local.size("pp")) > 1:
            rule, way_out = "the first stage alone sees tokens", "leave it out, or choose pp=1"
            raise ValueError(four_parts("packed", f"pp={pp}", rule, way_out))
        documents, before, shared = Documents(), setup.engine.ends.told, setup.shared_sequence

        def told(inputs: Tensor) -> None:
            before(inputs)
            ends = inputs == end
            documents.told(ends if shared is None else shared.gathered(ends.byte()).bool())

        setup.engine.ends.told = told
        if shared is None:
            model.mix_by(documents.attention)
        else:
            shared.documents = documents

    return apply
