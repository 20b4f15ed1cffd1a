"""The journal from release to release: what an earlier one wrote is honoured, and so is what a later one wrote.

The fixtures were written by the releases that had those formats (`record_journals.py`).
"""

import json
import re

import pytest

from tests.component.node.node_under_fire import rows, until
from tests.component.upgrade.held import EVERY_KIND, FIXTURES, KINDS, NEWER, THIS, HeldNode, answers_of, fixture

LONG = 3  # of `nvidia-smi compute-policy`
GIB = 2**30
THIS_FORMAT, NEWER_FORMAT = 1003, 1009


def made_by(kinds) -> dict[str, object]:
    """What claims of these kinds make of the GPUs."""
    enabled, exclusive = (1, 0), (0, 3)
    plain = (0, 0)
    return {
        "slices": [LONG, 0, 0, 0],
        "modes": [
            plain,
            exclusive if "share" in kinds else plain,
            enabled if "partition" in kinds else plain,
            enabled if "part-of-partition" in kinds else plain,
        ],
        "partitions": [
            [],
            [],
            [("3g.40gb", 0)] if "partition" in kinds else [],
            [("1g.10gb", 4)] if "part-of-partition" in kinds else [],
        ],
        "limits": [2 * GIB] if "share" in kinds else [],
    }


def effects(held: HeldNode) -> dict[str, object]:
    found = held.effects()
    return found | {"limits": [limit for _, limit in found["limits"]]}


def told_by(held: HeldNode, release: str) -> dict[str, tuple]:
    """What the kubelet was told by the release that wrote a fixture."""
    found = {}
    for payload in re.findall(r"'(\{\"writer\".*\})'\);$", fixture(release), re.MULTILINE):
        devices = json.loads(held.with_own_values(payload))["devices"]
        [kind] = [kind for kind, claim in held.claims.items() if claim.uid in devices[0]["cdi_ids"][0]]
        found[kind] = tuple((one["device"], tuple(one["cdi_ids"]), one.get("share_id")) for one in devices)
    return found


async def prepared_again(held: HeldNode) -> dict[str, tuple]:
    return answers_of({kind: await held.world.prepared(claim) for kind, claim in held.claims.items()})


@pytest.mark.parametrize("release", KINDS)
async def test_what_an_earlier_release_holds_is_held_told_the_same_and_given_back(held, release):
    held.make_pod()
    for kind in KINDS[release]:
        held.add(kind)
    held.load(fixture(release))

    await held.start()
    answers = await prepared_again(held)

    assert answers == told_by(held, release)
    assert held.states() == dict.fromkeys(KINDS[release], "prepared")
    assert effects(held) == made_by(KINDS[release])
    assert len(held.world.cdi_files) == len(KINDS[release])
    assert held.format() == THIS_FORMAT
    await held.give_back()
    assert held.left() == {}


@pytest.mark.case("C22")
@pytest.mark.parametrize("release", KINDS)
async def test_a_node_that_was_rebooted_for_the_upgrade_has_what_its_claims_had(held, release):
    held.make_pod()
    for kind in KINDS[release]:
        held.add(kind)
    held.load(fixture(release), boot="the-boot-before")
    gone = held.claims.pop("watched")
    held.cluster.remove_claim(gone)

    await held.start()
    settled = sorted((claim.uid, held.node.boot_id, "prepared") for claim in held.claims.values())
    await until(lambda: rows(held.world, "SELECT uid, boot_id, state FROM claims ORDER BY uid") == settled)

    assert effects(held) == made_by(KINDS[release])
    assert len(held.world.cdi_files) == len(held.claims)
    await prepared_again(held)
    await held.give_back()
    assert held.left() == {}


@pytest.mark.case("C20")
async def test_forward_back_and_forward_again_with_claims_held_all_along(held):
    older = await held.start()
    told = answers_of(await held.hold(*EVERY_KIND))
    share = held.claims["share"]
    pod = held.sharing.of("share", share, await held.world.prepared(share), held.cgroup)
    client = held.sharing.client(pod)
    await held.stop(older)

    for program, version in ((NEWER, NEWER_FORMAT), (THIS, NEWER_FORMAT), (NEWER, NEWER_FORMAT)):
        instance = await held.start(program=program)
        assert await prepared_again(held) == told
        assert effects(held) == made_by(EVERY_KIND)
        assert held.states() == dict.fromkeys(EVERY_KIND, "prepared")
        assert held.format() == version
        assert client.command("alloc 1M").startswith("ok")
        for kind in ("whole", "partition"):  # each release gives back what another has prepared, and the other way
            claim = held.claims.pop(kind)
            assert await held.world.unprepare(claim) == {claim.uid: ""}
            held.cluster.remove_claim(claim)
            told |= answers_of(await held.hold(kind))
        await held.stop(instance)

    await held.start()
    client.kill()
    await held.give_back()
    assert held.left() == {}


@pytest.mark.case("C20")
async def test_what_a_later_release_wrote_is_given_back_and_what_it_added_is_kept_for_it(held):
    later = await held.start(program=NEWER)
    await held.hold(*EVERY_KIND)
    await held.stop(later)
    await held.start()
    await prepared_again(held)

    kept = [json.loads(payload) for (payload,) in rows(held.world, "SELECT payload FROM claims")]

    assert all(one["later"] == {"thing": 1} for one in kept)
    assert all(step["later"] for one in kept for step in one["steps"])
    assert {tenant for (tenant,) in rows(held.world, "SELECT tenant FROM claims")} == {"blue"}
    await held.give_back()
    assert held.left() == {}


@pytest.mark.case("C20")
async def test_a_step_that_only_a_later_release_knows_waits_for_it_and_costs_no_other_claim(held):
    later = await held.start(program=NEWER)
    await held.hold(*EVERY_KIND)
    await held.stop(later)
    held.change_journal(
        "UPDATE claims SET payload = json_set(payload, '$.steps[0].step', 'foldSpace', '$.writer', '9.9.9') "
        f"WHERE uid = '{held.claims['whole'].uid}'"
    )
    await held.start()
    strange = held.claims.pop("whole")

    refused = await held.world.refused(strange)
    stays = (await held.world.unprepare(strange))[strange.uid]
    await prepared_again(held)
    await held.give_back()

    assert "foldSpace" in refused
    assert "9.9.9" in refused
    assert "9.9.9" in stays
    assert set(held.left()) == {"hardware", "records", "files"}
    held.change_journal("UPDATE claims SET payload = json_set(payload, '$.steps[0].step', 'setTimeSlice')")
    await held.stop(held.world.plugin)
    await held.start(program=NEWER)
    assert await held.world.unprepare(strange) == {strange.uid: ""}
    assert held.left() == {}


@pytest.mark.parametrize("program", [THIS, NEWER], ids=["this-release", "a-later-one"])
async def test_earlier_releases_find_in_the_file_what_they_ask_for(held, program):
    instance = await held.start(program=program)
    await held.hold(*EVERY_KIND)
    await held.stop(instance)
    before = held.dump()

    # Every statement that these releases have for the journal, each with a claim of its own that comes and goes.
    for release in ("1.0", "1.1"):
        asked = held.with_own_values((FIXTURES / f"asked-{release}.sql").read_text())
        held.change_journal(*asked.split(";\n"))

    assert held.dump().replace(f"'claims',{len(EVERY_KIND) + 2}", f"'claims',{len(EVERY_KIND)}") == before
