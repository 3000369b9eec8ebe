/**
 * The mounts of one VM, from its start until it is paused or exits. The contract with the control plane is host-disks.ts of the
 * protocol, the one with the guest guest-mounts.ts.
 *
 * Order of events when a set arrives:
 *
 *   1. The S3 proxy gets the credentials, and for each mount the hash of a token and the address of the sandbox. This does not
 *      wait for the guest, whatever that is doing.
 *   2. The guest agent gets the complete set with the tokens. It saves and unmounts what is no longer listed, then answers.
 *   3. The S3 proxy forgets the mounts that are gone, which ends the requests and connections of the guest for them. This happens
 *      when the guest has answered or failed to, and at the latest DETACH_GRACE_MS after the set arrived: access ends at the host,
 *      and not where the guest decides.
 *
 * Sets are given to the guest one after the other, and those that a newer one replaces before their turn are skipped: a guest that does
 * not answer must not make the host collect them. A set that arrives after a newer one changes nothing. One that failed at any
 * step is applied again when it is sent again. Afterwards the guest reports every change (watch-guest-mounts.ts). The tokens are
 * new for every VM and every resume, and a guest that continues uses the new ones.
 */
import { randomBytes } from 'node:crypto'
import { abortable } from '@warren/kit/abortable'
import type { Log } from '@warren/kit/log'
import {
  GUEST_PROTOCOL,
  type GuestAgentInfo,
  type GuestMount,
  GuestMounts,
  GuestMountsApplied,
  HOST_MOUNTS_LIMIT_MS,
  type HostMount,
  type HostMountReport,
  type HostUnsavedMount,
  type HostVmMounts,
  type HostVmMountsApplied,
  type HostVmMountsReport,
} from '@warren/protocol'
import { callGuest, GuestError } from '../guest/call-guest.ts'
import type { GuestChannel } from '../guest/channel.ts'
import { HostError } from '../host-error.ts'
import { HOST_ADDRESS } from '../net/names.ts'
import { ChangeQueue } from './change-queue.ts'
import { listRemoved, listUnsaved, listWritable } from './mount-details.ts'
import { MountReport } from './mount-report.ts'
import { createMountToken } from './mount-token.ts'
import type { S3Proxy } from './s3-proxy-client.ts'
import type { MountAnswer, S3ProxyMount } from './s3-proxy-protocol.ts'
import { watchGuestMounts } from './watch-guest-mounts.ts'

/** The time in which the guest saves, and a little more. */
const DETACH_GRACE_MS = 22_000
/** A guest whose agent cannot be reached for so long saves nothing. */
const UNREACHABLE_GRACE_MS = 5_000
/** Beyond the deadline that the guest gets. */
const FLUSH_MARGIN_MS = 2_000
const TOO_OLD = 'this sandbox was started by a version of Warren without disks; create a new one to mount disks'

export type VmMountsDeps = {
  s3Proxy: Pick<S3Proxy, 'setMounts' | 'removeMounts' | 'port' | 'on' | 'off'>
  log: Pick<Log, 'warn'>
  /** Other times for tests. */
  detachGraceMs?: number
}

/** The guest, as far as mounts need it. */
export type MountingVmm = {
  record: { agent?: GuestAgentInfo }
  channel(signal?: AbortSignal): Promise<GuestChannel>
}

type Wanted = Omit<HostMount, 'credentials'>
type Removed = HostVmMountsApplied['removed']
/** What gives the guest access to one bucket. */
type Grant = ReturnType<typeof createMountToken> & { report: MountReport }

/** `isAdopted`: started by an earlier host agent, so that its mounts are not known until a set arrives. */
type MountedVm = { sandbox: string; ip: string; vmm: MountingVmm; isAdopted?: boolean }

const withoutCredentials = ({ credentials: _, ...wanted }: HostMount): Wanted => wanted

export class VmMounts {
  readonly #deps: VmMountsDeps
  readonly #vm: MountedVm
  readonly #ended: AbortSignal
  /** Two VMMs of one sandbox can exist for a moment, and have mounts with the same ids. */
  readonly #name = randomBytes(8).toString('hex')
  readonly #grants = new Map<string, Grant>()
  /** Of the newest set that has arrived. */
  #listed: ReadonlySet<string> = new Set()
  #armedRevision: number | undefined
  /** Of the set that the guest has. */
  #revision: number | undefined
  #wanted: readonly Wanted[] = []
  /** The set with the highest revision that has arrived. */
  #newest: { revision: number; mounts: readonly Wanted[] } = { revision: -1, mounts: [] }
  readonly #arming = new ChangeQueue<void>()
  readonly #applying = new ChangeQueue<HostVmMountsApplied>()
  #isWatched = false

  /** `ended` is aborted when the VM no longer runs. */
  constructor(deps: VmMountsDeps, vm: MountedVm, ended: AbortSignal) {
    this.#deps = deps
    this.#vm = vm
    this.#ended = ended
    const onAnswer = (answer: MountAnswer) => this.#noteAnswer(answer)
    deps.s3Proxy.on('answered', onAnswer)
    ended.addEventListener(
      'abort',
      () => {
        deps.s3Proxy.off('answered', onAnswer)
        void this.#close()
      },
      { once: true },
    )
  }

  report(): HostVmMountsReport {
    return {
      ...(this.#revision === undefined ? {} : { revision: this.#revision }),
      mounts: this.#wanted.map((wanted) => this.#reportOf(wanted)),
    }
  }

  /**
   * Gives the S3 proxy the mounts of a guest that does not run yet, so that it reaches its buckets as soon as it has its tokens.
   * A failure is that of the `set` which follows.
   */
  armInBackground(wanted: HostVmMounts): void {
    this.#arm(wanted).catch(() => {})
  }

  async set(wanted: HostVmMounts): Promise<HostVmMountsApplied> {
    this.#ended.throwIfAborted()
    if (wanted.revision < this.#newest.revision) return this.#applying.pending ?? { ...this.report(), removed: [] }
    const armed = this.#arm(wanted)
    armed.catch(() => {}) // The caller gets the error, unless a newer set takes the place of this one.
    return this.#applying.add(wanted.revision, async () => {
      await armed
      return this.#apply(wanted)
    })
  }

  /** For a create or a resume, which do not wait for it. If it fails, the control plane sends the mounts again. */
  setInBackground(wanted: HostVmMounts): void {
    this.set(wanted).catch((error) => {
      if (!this.#ended.aborted)
        this.#deps.log.warn({ err: error, sandbox: this.#vm.sandbox }, 'failed to set the mounts of a sandbox')
    })
  }

  /**
   * Before a pause. What cannot be saved in time stays in the guest, and is saved when it continues. Returns what is left, and the
   * mounts of which the guest does not say it. A guest that continued after a pause, or runs longer than this process, has mounts
   * also if it has not got a set from here yet.
   */
  async flush(deadlineMs: number): Promise<HostUnsavedMount[]> {
    const { revision, mounts: listed } = this.#newest
    const isUnknown = this.#vm.isAdopted === true && revision === -1
    if ((listed.length === 0 && !isUnknown) || !this.#canMount()) return []
    const writable = listed.filter(({ read_only }) => !read_only).map(({ id }) => id)
    try {
      const request = { method: 'POST', path: '/mounts/flush', response: GuestMounts } as const
      const limit = AbortSignal.timeout(deadlineMs + FLUSH_MARGIN_MS)
      const { session } = await this.#vm.vmm.channel(limit)
      const { mounts } = await callGuest(session, { ...request, body: { deadline_ms: deadlineMs } }, limit)
      this.#accept(mounts)
      const unsaved = listUnsaved(isUnknown ? listWritable(mounts) : writable, mounts)
      if (unsaved.length > 0) this.#warnUnsaved({ unsaved: unsaved.map(({ id, unsaved: left }) => [id, left?.files]) })
      return unsaved
    } catch (error) {
      this.#warnUnsaved({ err: error })
      return writable.map((id) => ({ id }))
    }
  }

  #warnUnsaved(details: object): void {
    const text =
      'not all files on the disks of a sandbox could be saved before its pause; they are saved when it resumes'
    this.#deps.log.warn({ sandbox: this.#vm.sandbox, ...details }, text)
  }

  /** Step 1, and the timer of step 3. */
  async #arm({ revision, mounts }: HostVmMounts): Promise<void> {
    if (revision < this.#newest.revision) return
    this.#newest = { revision, mounts: mounts.map(withoutCredentials) }
    await this.#arming.add(revision, async () => {
      this.#ended.throwIfAborted()
      if (revision <= (this.#armedRevision ?? -1) || !this.#canMount()) return
      this.#listed = new Set(mounts.map(({ id }) => id))
      if (this.#findGone().length > 0) this.#revokeAfter(this.#deps.detachGraceMs ?? DETACH_GRACE_MS)
      if (mounts.length > 0) {
        for (const { id, revision: mountRevision } of mounts) this.#grantOf(id).report.expect(mountRevision)
        await this.#deps.s3Proxy.setMounts(mounts.map((mount) => this.#toProxyMount(mount)))
      }
      this.#armedRevision = revision
    })
  }

  async #apply({ revision, mounts }: HostVmMounts): Promise<HostVmMountsApplied> {
    this.#ended.throwIfAborted()
    if (this.#revision !== undefined && revision <= this.#revision) return { ...this.report(), removed: [] }
    const gone = this.#wanted.filter(({ id }) => !mounts.some((mount) => mount.id === id))
    const removed = this.#canMount() ? await this.#mount(mounts, gone) : []
    this.#wanted = mounts.map(withoutCredentials)
    this.#revision = revision
    if (this.#canMount()) this.#watch()
    return { ...this.report(), removed }
  }

  async #mount(mounts: readonly HostMount[], gone: readonly Wanted[]): Promise<Removed> {
    let applied: GuestMountsApplied
    try {
      applied = await this.#setGuestMounts(mounts)
    } finally {
      await this.#revokeGone()
    }
    this.#accept(applied.mounts, { isFirst: true })
    return listRemoved(
      gone.map(({ id }) => id),
      applied.removed.filter(({ id }) => !mounts.some((mount) => mount.id === id)),
    )
  }

  async #setGuestMounts(mounts: readonly HostMount[]): Promise<GuestMountsApplied> {
    const address = `${HOST_ADDRESS}:${this.#deps.s3Proxy.port}`
    const wanted = mounts.map(({ id, revision, mount_path, read_only }) => {
      return { ...{ id, revision, mount_path, read_only }, address, token: this.#grantOf(id).token }
    })
    const limit = AbortSignal.any([this.#ended, AbortSignal.timeout(HOST_MOUNTS_LIMIT_MS)])
    const unreachable = this.#revokeAfter(Math.min(UNREACHABLE_GRACE_MS, this.#deps.detachGraceMs ?? DETACH_GRACE_MS))
    const request = { method: 'PUT', path: '/mounts', response: GuestMountsApplied, body: { mounts: wanted } } as const
    const send = async () => {
      const channel = await this.#vm.vmm.channel(limit)
      clearTimeout(unreachable)
      try {
        return await callGuest(channel.session, request, limit)
      } catch (error) {
        if (channel.session.destroyed) await abortable(channel.closed, limit)
        throw error
      }
    }
    try {
      // Once more if the connection broke: the guest then says again what it has removed.
      return await send().catch((error) => {
        if (limit.aborted || (error instanceof GuestError && error.failure)) throw error
        return send()
      })
    } catch (error) {
      if (error instanceof GuestError && error.failure?.code === 'disks_unavailable')
        throw new HostError('disks_unavailable', 'the guest cannot mount disks', { cause: error })
      throw new HostError('guest_unreachable', `failed to set the mounts of ${this.#vm.sandbox}`, { cause: error })
    } finally {
      clearTimeout(unreachable)
    }
  }

  #findGone(): string[] {
    return [...this.#grants.keys()].filter((id) => !this.#listed.has(id))
  }

  #revokeAfter(graceMs: number): NodeJS.Timeout {
    return setTimeout(() => {
      if (this.#findGone().length === 0) return
      const { sandbox } = this.#vm
      this.#deps.log.warn({ sandbox }, 'a guest did not give up its detached disks in time; its access to them ends')
      this.#revokeGone().catch((error) =>
        this.#deps.log.warn({ err: error, sandbox }, 'failed to end the access to detached disks'),
      )
    }, graceMs).unref()
  }

  /** Step 3. Waits for a set on its way to the proxy, which could add a mount that is gone meanwhile. */
  async #revokeGone(): Promise<void> {
    await this.#arming.pending?.catch(() => {}) // Its caller gets the error.
    const gone = this.#findGone()
    if (gone.length === 0) return
    for (const id of gone) this.#grants.delete(id)
    await this.#deps.s3Proxy.removeMounts(gone.map((id) => this.#proxyId(id)))
  }

  #watch(): void {
    if (this.#isWatched || this.#wanted.length === 0) return
    this.#isWatched = true
    void watchGuestMounts(
      () => this.#vm.vmm.channel(),
      (mounts) => this.#accept(mounts),
      this.#ended,
    )
  }

  /** The guest is not trusted: it can report wrong things, but only about its own mounts. */
  #accept(mounts: readonly GuestMount[], given: { isFirst?: boolean } = {}): void {
    for (const mount of mounts) this.#grants.get(mount.id)?.report.accept(mount, given)
  }

  #noteAnswer({ id, revision, ok }: MountAnswer): void {
    const suffix = this.#proxyId('')
    if (id.endsWith(suffix)) this.#grants.get(id.slice(0, -suffix.length))?.report.noteAnswer(revision, ok)
  }

  #reportOf({ id, revision }: Wanted): HostMountReport {
    if (!this.#canMount()) return { id, revision, status: 'failed', mount_error: TOO_OLD }
    const report = this.#grants.get(id)?.report
    return { id, revision, ...(report?.read(revision) ?? { status: 'pending' }), ...report?.details() }
  }

  #canMount(): boolean {
    return (this.#vm.vmm.record.agent?.protocol ?? GUEST_PROTOCOL.FIRST) >= GUEST_PROTOCOL.DISKS
  }

  #grantOf(id: string): Grant {
    const grant = this.#grants.get(id) ?? { ...createMountToken(), report: new MountReport() }
    this.#grants.set(id, grant)
    return grant
  }

  #proxyId(id: string): string {
    return `${id}.${this.#name}`
  }

  #toProxyMount(mount: HostMount): S3ProxyMount {
    return {
      id: this.#proxyId(mount.id),
      revision: mount.revision,
      sandboxIp: this.#vm.ip,
      tokenHash: this.#grantOf(mount.id).tokenHash,
      endpoint: mount.endpoint,
      region: mount.region,
      bucket: mount.bucket,
      subPath: mount.sub_path,
      usePathStyle: mount.use_path_style,
      readOnly: mount.read_only,
      allowLoopback: mount.allow_loopback,
      credentials: { accessKey: mount.credentials.access_key, secretKey: mount.credentials.secret_key },
    }
  }

  async #close(): Promise<void> {
    this.#listed = new Set()
    await this.#revokeGone().catch((error) =>
      this.#deps.log.warn({ err: error }, 'failed to remove the mounts of a sandbox'),
    )
  }
}
