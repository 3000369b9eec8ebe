/**
 * The mounts of one VM, from its start until it is paused or exits. The contract with the control plane is host-disks.ts of the
 * protocol, the one with the guest guest-mounts.ts.
 *
 * Order of events when a set arrives:
 *
 *   1. The S3 proxy gets the credentials, and for each mount the hash of a token and the address of the sandbox.
 *   2. The guest agent gets the complete set with the tokens. It saves and unmounts what is no longer listed, then answers.
 *   3. The S3 proxy forgets the mounts that are gone.
 *
 * Sets are applied one after the other. One that failed at any step is applied again when it is sent again. Afterwards the guest
 * reports every change (watch-guest-mounts.ts). The tokens are new for every VM and every resume, and a guest that continues
 * uses the new ones.
 */
import { randomBytes } from 'node:crypto'
import type { Log } from '@warren/kit/log'
import {
  GUEST_PROTOCOL,
  type GuestMount,
  GuestMounts,
  GuestMountsApplied,
  type HostMount,
  type HostMountReport,
  type HostVmMounts,
  type HostVmMountsApplied,
  type HostVmMountsReport,
  truncateMountError,
} from '@warren/protocol'
import { callGuest, GuestError } from '../guest/call-guest.ts'
import { HostError } from '../host-error.ts'
import { HOST_ADDRESS } from '../net/names.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { createMountToken } from './mount-token.ts'
import type { S3Proxy } from './s3-proxy-client.ts'
import type { S3ProxyMount } from './s3-proxy-protocol.ts'
import { watchGuestMounts } from './watch-guest-mounts.ts'

/** The guest has 20 s to save a mount that is removed. */
const SET_LIMIT_MS = 60_000
/** Beyond the deadline that the guest gets. */
const FLUSH_MARGIN_MS = 2_000
const TOO_OLD = 'this sandbox was started by a version of Warren without disks; create a new one to mount disks'

export type VmMountsDeps = { s3Proxy: S3Proxy; log: Pick<Log, 'warn'> }

type Wanted = Omit<HostMount, 'credentials'>
type Removed = HostVmMountsApplied['removed']

export class VmMounts {
  readonly #deps: VmMountsDeps
  readonly #vm: { sandbox: string; ip: string; vmm: Vmm }
  readonly #ended: AbortSignal
  /** Two VMMs of one sandbox can exist for a moment, and have mounts with the same ids. */
  readonly #name = randomBytes(8).toString('hex')
  readonly #tokens = new Map<string, ReturnType<typeof createMountToken>>()
  readonly #reports = new Map<string, GuestMount>()
  #revision: number | undefined
  #wanted: readonly Wanted[] = []
  #lastChange: Promise<unknown> = Promise.resolve()
  #isWatched = false

  /** `ended` is aborted when the VM no longer runs. */
  constructor(deps: VmMountsDeps, vm: { sandbox: string; ip: string; vmm: Vmm }, ended: AbortSignal) {
    this.#deps = deps
    this.#vm = vm
    this.#ended = ended
    ended.addEventListener('abort', () => void this.#close(), { once: true })
  }

  report(): HostVmMountsReport {
    return {
      ...(this.#revision === undefined ? {} : { revision: this.#revision }),
      mounts: this.#wanted.map((wanted) => this.#reportOf(wanted)),
    }
  }

  set(wanted: HostVmMounts): Promise<HostVmMountsApplied> {
    const applied = this.#lastChange.then(() => this.#apply(wanted))
    this.#lastChange = applied.catch(() => {}) // The caller gets the error.
    return applied
  }

  /** For a create or a resume, which do not wait for it. If it fails, the control plane sends the mounts again. */
  setInBackground(wanted: HostVmMounts): void {
    this.set(wanted).catch((error) => {
      if (!this.#ended.aborted)
        this.#deps.log.warn({ err: error, sandbox: this.#vm.sandbox }, 'failed to set the mounts of a sandbox')
    })
  }

  /** Before a pause. What cannot be saved in time stays in the guest, and is saved when it continues. */
  async flush(deadlineMs: number): Promise<void> {
    if (this.#wanted.length === 0 || !this.#canMount()) return
    try {
      const request = { method: 'POST', path: '/mounts/flush', response: GuestMounts } as const
      const limit = AbortSignal.timeout(deadlineMs + FLUSH_MARGIN_MS)
      const { session } = await this.#vm.vmm.channel(limit)
      const { mounts } = await callGuest(session, { ...request, body: { deadline_ms: deadlineMs } }, limit)
      const unsaved = mounts.flatMap(({ id, details }) => (details?.dirty_files ? [[id, details.dirty_files]] : []))
      if (unsaved.length > 0) this.#warnUnsaved({ unsaved: Object.fromEntries(unsaved) })
    } catch (error) {
      this.#warnUnsaved({ err: error })
    }
  }

  #warnUnsaved(details: object): void {
    const text =
      'not all files on the disks of a sandbox could be saved before its pause; they are saved when it resumes'
    this.#deps.log.warn({ sandbox: this.#vm.sandbox, ...details }, text)
  }

  async #apply({ revision, mounts }: HostVmMounts): Promise<HostVmMountsApplied> {
    this.#ended.throwIfAborted()
    if (this.#revision !== undefined && revision <= this.#revision) return { ...this.report(), removed: [] }
    const gone = this.#wanted.filter(({ id }) => !mounts.some((mount) => mount.id === id))
    const removed = this.#canMount() ? await this.#mount(mounts, gone) : []
    this.#wanted = mounts.map(({ credentials: _, ...wanted }) => wanted)
    this.#revision = revision
    for (const { id } of gone) {
      this.#tokens.delete(id)
      this.#reports.delete(id)
    }
    if (this.#canMount()) this.#watch()
    return { ...this.report(), removed }
  }

  async #mount(mounts: readonly HostMount[], gone: readonly Wanted[]): Promise<Removed> {
    if (mounts.length > 0) await this.#deps.s3Proxy.setMounts(mounts.map((mount) => this.#toProxyMount(mount)))
    const applied = await this.#setGuestMounts(mounts)
    this.#accept(applied.mounts)
    if (gone.length > 0) await this.#deps.s3Proxy.removeMounts(gone.map(({ id }) => this.#proxyId(id)))
    return gone.map(({ id }) => {
      const unsaved = applied.removed.find((one) => one.id === id)?.unsaved_files ?? 0
      return { id, ...(unsaved > 0 && { warning: renderUnsaved(id, unsaved) }) }
    })
  }

  async #setGuestMounts(mounts: readonly HostMount[]): Promise<GuestMountsApplied> {
    const address = `${HOST_ADDRESS}:${this.#deps.s3Proxy.port}`
    const wanted = mounts.map(({ id, revision, mount_path, read_only }) => {
      return { ...{ id, revision, mount_path, read_only }, address, token: this.#tokenOf(id).token }
    })
    const limit = AbortSignal.any([this.#ended, AbortSignal.timeout(SET_LIMIT_MS)])
    try {
      const { session } = await this.#vm.vmm.channel(limit)
      const request = { method: 'PUT', path: '/mounts', response: GuestMountsApplied } as const
      return await callGuest(session, { ...request, body: { mounts: wanted } }, limit)
    } catch (error) {
      if (error instanceof GuestError && error.failure?.code === 'disks_unavailable')
        throw new HostError('disks_unavailable', 'the guest cannot mount disks', { cause: error })
      throw new HostError('guest_unreachable', `failed to set the mounts of ${this.#vm.sandbox}`, { cause: error })
    }
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
  #accept(mounts: readonly GuestMount[]): void {
    for (const mount of mounts) if (this.#tokens.has(mount.id)) this.#reports.set(mount.id, mount)
  }

  #reportOf({ id, revision }: Wanted): HostMountReport {
    if (!this.#canMount()) return { id, revision, status: 'failed', mount_error: TOO_OLD }
    const report = this.#reports.get(id)
    if (report?.revision !== revision) return { id, revision, status: 'pending' }
    const { status, mount_error = 'the guest named no reason' } = report
    return { id, revision, status, ...(status === 'failed' && { mount_error: truncateMountError(mount_error) }) }
  }

  #canMount(): boolean {
    return (this.#vm.vmm.record.agent?.protocol ?? GUEST_PROTOCOL.FIRST) >= GUEST_PROTOCOL.DISKS
  }

  #tokenOf(id: string): ReturnType<typeof createMountToken> {
    const known = this.#tokens.get(id) ?? createMountToken()
    this.#tokens.set(id, known)
    return known
  }

  #proxyId(id: string): string {
    return `${id}.${this.#name}`
  }

  #toProxyMount(mount: HostMount): S3ProxyMount {
    return {
      id: this.#proxyId(mount.id),
      sandboxIp: this.#vm.ip,
      tokenHash: this.#tokenOf(mount.id).tokenHash,
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

  /** Waits for a change under way, which would add its mounts to the proxy afterwards. */
  async #close(): Promise<void> {
    await this.#lastChange
    const ids = [...this.#tokens.keys()].map((id) => this.#proxyId(id))
    this.#tokens.clear()
    if (ids.length === 0) return
    await this.#deps.s3Proxy
      .removeMounts(ids)
      .catch((error) => this.#deps.log.warn({ err: error }, 'failed to remove the mounts of a sandbox'))
  }
}

const renderUnsaved = (id: string, files: number): string =>
  `changes of ${files} ${files === 1 ? 'file' : 'files'} could not be saved; they are in /var/lib/warren/disks/${id} of the sandbox`
