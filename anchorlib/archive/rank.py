"""Archives one rank, or a part of it: compresses (seals), sends, compares it, marks it complete.

Where several collectors recorded a rank, each holds a part, which is archived like a rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import xxhash

from anchorlib.archive.claiming import claim_rank
from anchorlib.errors import DamagedError, OptionError, RunBusyError, RunExistsError, StoreError
from anchorlib.names import escape
from anchorlib.store import Location, PartKey, RankReader
from anchorlib.store.disk import RankNote
from anchorlib.store.format import chunk_key, claim_key, rank_name
from anchorlib.store.objects import ObjectMetadata, Shelf
from anchorlib.store.seal import FolderTarget, Sealed, read_sealed, seal

__all__ = ["SentRank", "archive_rank", "is_archived", "listing_hash"]


@dataclass(frozen=True, slots=True)
class SentRank:
    """The result of archiving a rank or part, which is now complete in the archive.

    key: the rank's number, and the number of the part. objects, bytes: how many objects the rank
        has in the archive, and how many bytes these have. sent: how many objects were sent by this
        call. note: which state of the rank was archived. marked: whether this call marked the rank
        as complete, by storing its `sealed.json`.
    """

    key: PartKey
    objects: int
    bytes: int
    sent: int
    note: RankNote
    marked: bool = False


def archive_rank(run: Location, reader: RankReader, shelf: Shelf, scratch: Path) -> SentRank:
    """Archive one rank or part whose session has ended; objects already there are not sent again.

    run: the location of the run. reader: a reader of the rank or part there. shelf: takes the run's
        objects, whose keys begin with the rank's folder, such as "rank0/". scratch: an empty folder
        with room for the sealed (compressed) rank.

    Raises RunExistsError where the archive has another recording under this name, RunBusyError
    where another archiver sends other bytes for the rank or the rank was recorded into meanwhile,
    OptionError where the archive is the store into which the rank was recorded, DamagedError where
    rows or values do not fit their checksums; StoreError or CollectorError where the run or the
    archive cannot be read or written.
    """
    marked = read_sealed(shelf.location, reader.rank, reader.part)
    if marked is None:
        _check_not_live(reader, shelf)
    sealed = _made(run, reader, FolderTarget(scratch))
    if marked is not None and marked.document != sealed.document:
        return _other(marked, sealed, reader, shelf)
    if marked is None:
        claim_rank(shelf, sealed)
        # The archiver that had the claim until a moment ago may have marked other bytes as whole.
        late = read_sealed(shelf.location, reader.rank, reader.part)
        if late is not None and late.document != sealed.document:
            shelf.remove(claim_key(reader.rank, reader.part))
            return _other(late, sealed, reader, shelf)
    sent = _send(sealed, shelf, scratch)
    note = _note(reader, _compared(sealed, shelf, scratch))
    if not shelf.create(sealed.key, sealed.document):
        raise RunExistsError(_taken(reader.rank, shelf))
    shelf.remove(claim_key(reader.rank, reader.part))
    objects = len(sealed.objects) + 1
    return SentRank((reader.rank, reader.part), objects, _size(sealed), sent, note, marked is None)


def _check_not_live(reader: RankReader, shelf: Shelf) -> None:
    """Raise OptionError where the archive's folder is the one that the rank was recorded into.

    That is so if the archive is the collector's own directory under another name. Sealed
    (compressed) objects would then replace the rank's only files.
    """
    folder = rank_name(reader.rank, reader.part)
    if f"{folder}/catalog/{chunk_key(0, 0)}" in shelf.held(folder):
        raise OptionError(
            f"{escape(shelf.place)}/{folder} is where rank {reader.rank} was recorded: an archive "
            "is another place than a store; take another --to"
        )


def _made(run: Location, reader: RankReader, into: FolderTarget) -> Sealed:
    """Write the rank's sealed objects into the folder `into`; return their description.

    Sealed objects are the rank compressed for an archive. The rank is sealed now, or its objects
    are copied if it is sealed already.
    run: the location of the run. reader: a reader of the rank there.
    Raises DamagedError where rows, values or sealed objects do not fit their checksums,
    RunBusyError where the rank was recorded into meanwhile, StoreError where files cannot be read
    or written.
    """
    there = read_sealed(run, reader.rank, reader.part)
    if there is None:
        sealed = seal(run, reader, into, ended_elsewhere=True)
        _check_unchanged(run, reader)
        return sealed
    for one in there.objects:
        data = run.get(one.key)
        if data is None or hashlib.sha256(data).hexdigest() != one.sha256:
            raise DamagedError(f"{escape(one.key)} is not what was sealed: anchor verify says more")
        into.put(one.key, [data])
    return there


def _check_unchanged(run: Location, reader: RankReader) -> None:
    """Raise RunBusyError where a rank was recorded into while it was sealed, that is, compressed.

    The sealed objects may then have the values of one recording and the series of another one.

    run: the location of the run. reader: the reader from which the rank was sealed; it shows the
        rank as it was before.
    """
    now = RankReader(run, reader.rank, reader.run, reader.part)
    if (now.catalogue.uid, *now.version) != (reader.catalogue.uid, *reader.version):
        raise RunBusyError(
            f"rank {reader.rank} was recorded into while it was sealed, so that nothing of it was "
            "sent: archive the run when that has ended"
        )


def is_archived(reader: RankReader, note: RankNote, shelf: Shelf) -> bool:
    """Return whether the archive still has a rank as its note says, and the rank here is unchanged.

    reader: a reader of the rank here. note: which state of the rank was archived, with a hash of
        the names, sizes and tags (such as ETags) of its objects. shelf: the run's archive. In the
        archive, only these facts and `sealed.json` are read, not the objects' contents.
    """
    if (reader.catalogue.uid, *reader.version) != note.sealed:
        return False
    sealed = read_sealed(shelf.location, reader.rank, reader.part)
    if sealed is None or sealed.uid != note.uid:
        return False
    held = shelf.held(rank_name(reader.rank, reader.part))
    if any(key not in held for key in (one.key for one in sealed.objects)):
        return False
    return listing_hash({one.key: held[one.key] for one in sealed.objects}) == note.objects


def listing_hash(held: dict[str, ObjectMetadata]) -> str:
    """Return a hash of the names, sizes and tags of objects, in hex.

    held: size and tag of each object, by its key. A tag is what the store gives an object whenever
        it is written, such as an ETag.
    """
    lines = (f"{key}\0{one.size}\0{one.tag}\n" for key, one in sorted(held.items()))
    return xxhash.xxh3_128_hexdigest("".join(lines).encode())


def _send(sealed: Sealed, shelf: Shelf, scratch: Path) -> int:
    """Send the objects that the archive lacks or has with other bytes; return how many were sent.

    Other objects of the rank in the archive, left by an earlier recording, are removed there.

    sealed: the description of the rank's sealed (compressed) objects. scratch: the folder with
        these objects.
    """
    held = shelf.held(sealed.folder)
    sent = 0
    for one in sealed.objects:
        data = _sealed_bytes(scratch, one.key, one.sha256)
        there = held.get(one.key)
        if there is None or not shelf.is_same(one.key, there, data):
            shelf.put(one.key, data)
            sent += 1
    own = {one.key for one in sealed.objects} | {sealed.key, claim_key(sealed.rank, sealed.part)}
    for key in held.keys() - own:  # objects of an earlier recording of the rank
        shelf.remove(key)
    return sent


def _compared(sealed: Sealed, shelf: Shelf, scratch: Path) -> dict[str, ObjectMetadata]:
    """Check that the archive has each of the rank's objects as the folder `scratch` has it.

    Return size and tag of each object in the archive, by its key. Raises StoreError where an object
    is missing or differs in the archive, DamagedError where a file in `scratch` has changed.
    """
    held = shelf.held(sealed.folder)
    for one in sealed.objects:
        data = _sealed_bytes(scratch, one.key, one.sha256)
        there = held.get(one.key)
        if there is None or not shelf.is_same(one.key, there, data):
            raise StoreError(
                f"{escape(shelf.place)}/{one.key} is not what was sent a moment ago: nothing was "
                "removed here; try again"
            )
    return {one.key: held[one.key] for one in sealed.objects}


def _sealed_bytes(scratch: Path, key: str, sha256: str) -> bytes:
    data = (scratch / key).read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedError(
            f"{escape(str(scratch / key))} is not what was written a moment ago: the disk is faulty"
        )
    return data


def _other(there: Sealed, sealed: Sealed, reader: RankReader, shelf: Shelf) -> SentRank:
    """Accept or refuse an archived rank whose `sealed.json` differs from the one made now.

    The archived rank is accepted if it has the same records, compressed by another version, and
    if each of its objects, which are all read, has the right hash.
    there: the `sealed.json` of the archive. sealed: the one that was made now.
    Returns the archived rank, with 0 objects sent. Raises RunExistsError where the archive has
    other records, DamagedError where one of its objects is missing or damaged.
    """
    if (there.uid, there.records) != (sealed.uid, sealed.records):
        raise RunExistsError(_taken(reader.rank, shelf))
    if RankReader(shelf.location, reader.rank, part=reader.part).version != reader.version:
        raise RunExistsError(_taken(reader.rank, shelf))
    held = shelf.held(rank_name(reader.rank, reader.part))
    for one in there.objects:
        stored = shelf.fetch(one.key)
        if stored is None or hashlib.sha256(stored[0]).hexdigest() != one.sha256:
            raise DamagedError(
                f"{escape(shelf.place)}/{one.key} is damaged, and another version sealed it: "
                f"remove rank {reader.rank} of the run there, and archive it again"
            )
    note = _note(reader, {one.key: held[one.key] for one in there.objects if one.key in held})
    return SentRank((reader.rank, reader.part), len(there.objects) + 1, _size(there), 0, note)


def _note(reader: RankReader, held: dict[str, ObjectMetadata]) -> RankNote:
    records, catalogue = reader.version
    return RankNote(reader.catalogue.uid, records, catalogue, listing_hash(held))


def _size(sealed: Sealed) -> int:
    return sum(one.size for one in sealed.objects) + len(sealed.document)


def _taken(rank: int, shelf: Shelf) -> str:
    return (
        f"{escape(shelf.place)} has another recording of rank {rank}: what is archived never "
        "changes; take another --to, or remove that run there first"
    )
