/**
 * The status of one mount, from what its guest reports and what the S3 proxy sees.
 *
 * A guest agent that gets a new revision, or continues after a pause, first repeats the status of before. So a status counts only
 * with a sign that it is about this revision:
 *
 *   mounted   once the store has answered a request of this mount with the credentials of this revision (the guest asks it when it
 *             gets the revision)
 *   failed    once it differs from what the guest said first, or the store has refused such a request, or when the guest had the
 *             time for an attempt
 *
 * Until then the status is `pending`.
 *
 * Each change of the status is written to the database, and the guest is not trusted: after a few changes in a row, the next ones are
 * shown at intervals.
 */
import { type GuestMount, type HostMountDetails, type MountStatus, truncateMountError } from '@warren/protocol'
import { toMountDetails } from './mount-details.ts'

/** The guest limits a check to 10 s, and tries a mount that failed again at once. */
const STALE_MS = 12_000
const CHANGES_AT_ONCE = 8
const CHANGE_EVERY_MS = 10_000

type Status = { status: MountStatus; mount_error?: string }

export class MountReport {
  readonly #now: () => number
  #revision = -1
  #expectedAt = 0
  #answer: { ok: boolean; failed: boolean } = { ok: false, failed: false }
  #reported: Status | undefined
  /** The status of before the revision, as text. */
  #stale: string | undefined
  #details: HostMountDetails = {}
  #shown: Status = { status: 'pending' }
  #changesLeft = CHANGES_AT_ONCE
  #changesLeftAt: number

  constructor(now: () => number = () => performance.now()) {
    this.#now = now
    this.#changesLeftAt = now()
  }

  /** From now on reports and answers with this revision count. */
  expect(revision: number): void {
    if (revision === this.#revision) return
    this.#revision = revision
    this.#expectedAt = this.#now()
    this.#answer = { ok: false, failed: false }
    this.#stale = this.#reported && JSON.stringify(this.#reported)
    this.#reported = undefined
    this.#shown = { status: 'pending' }
  }

  /** `isFirst`: sent when the guest got the revision, before it could do anything. */
  accept(mount: GuestMount, { isFirst = false }: { isFirst?: boolean } = {}): void {
    if (mount.revision !== this.#revision) return
    const { status, mount_error = 'the guest named no reason' } = mount
    this.#reported = { status, ...(status === 'failed' && { mount_error: truncateMountError(mount_error) }) }
    this.#details = toMountDetails(mount)
    if (isFirst) this.#stale ??= JSON.stringify(this.#reported)
  }

  noteAnswer(revision: number, ok: boolean): void {
    if (revision === this.#revision) this.#answer[ok ? 'ok' : 'failed'] = true
  }

  /** Undefined for another revision than the expected one. */
  read(revision: number): Status | undefined {
    if (revision !== this.#revision) return undefined
    const current = this.#findCurrent()
    if (JSON.stringify(current) !== JSON.stringify(this.#shown) && this.#takeChange()) this.#shown = current
    return this.#shown
  }

  details(): HostMountDetails {
    return this.#details
  }

  #findCurrent(): Status {
    const reported = this.#reported
    if (reported?.status === 'mounted' && this.#answer.ok) return reported
    if (reported?.status === 'failed' && !this.#isStale(reported)) return reported
    return { status: 'pending' }
  }

  #isStale(reported: Status): boolean {
    const hadTime = this.#answer.failed || this.#now() - this.#expectedAt > STALE_MS
    return JSON.stringify(reported) === this.#stale && !hadTime
  }

  #takeChange(): boolean {
    const now = this.#now()
    const gained = Math.floor((now - this.#changesLeftAt) / CHANGE_EVERY_MS)
    this.#changesLeft = Math.min(CHANGES_AT_ONCE, this.#changesLeft + gained)
    this.#changesLeftAt += gained * CHANGE_EVERY_MS
    if (this.#changesLeft === 0) return false
    this.#changesLeft--
    return true
  }
}
