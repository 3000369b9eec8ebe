/** A saved file is missing, or differs from its checksums. */
export class SnapshotDamage extends Error {
  override name = 'SnapshotDamage'
}
