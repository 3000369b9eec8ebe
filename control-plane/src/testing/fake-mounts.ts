/**
 * The mounts of a VM of a fake host: they go through the real states, older revisions are ignored, and new credentials act at
 * once. A store refuses the credentials with WRONG_SECRET; everything else about stores is decided by hooks of the test.
 */
import {
  type HostMount,
  type HostMountDetails,
  type HostMountReport,
  type HostUnsavedMount,
  type HostVmMounts,
  type HostVmMountsApplied,
  type HostVmMountsReport,
  MOUNT_MOVES,
  type MountMove,
  type MountStatus,
} from '@warren/protocol'

export const WRONG_SECRET = 'wrong-secret'

export type MountHooks = {
  /** Runs before each attempt; what it throws is the `mount_error`. */
  beforeMount?: (id: string, mount: HostMount) => Promise<void> | void
  /** Runs when a mount is removed. What it returns could not be saved. */
  beforeUnmount?: (id: string, mount: HostMount) => Promise<string | undefined> | string | undefined
  /** What the guest says about the files of a mount. */
  details?: (mount: HostMount) => HostMountDetails
  /** Whether a pause gets no answer of the guest. */
  isSilent?: boolean
}

type FakeMount = { wanted: HostMount; status: MountStatus; error?: string }

export class FakeMounts {
  readonly #id: string
  readonly #hooks: () => MountHooks
  readonly #mounts = new Map<string, FakeMount>()
  /** Undefined once the agent that received the mounts has died. */
  #revision: number | undefined

  constructor(id: string, hooks: () => MountHooks, given: HostVmMounts = { revision: 0, mounts: [] }) {
    this.#id = id
    this.#hooks = hooks
    this.#revision = given.revision
    for (const mount of given.mounts) this.#add(mount)
  }

  /** What the host was last given, with credentials. */
  get wanted(): HostMount[] {
    return [...this.#mounts.values()].map(({ wanted }) => wanted)
  }

  async set({ revision, mounts }: HostVmMounts): Promise<HostVmMountsApplied> {
    if (revision < (this.#revision ?? 0)) return { ...this.report(), removed: [] }
    this.#revision = revision
    const gone = this.wanted.filter(({ id }) => !mounts.some((mount) => mount.id === id))
    for (const { id } of gone) this.#mounts.delete(id)
    for (const mount of mounts) this.#change(mount)
    const removed = await Promise.all(gone.map((mount) => this.#unmount(mount)))
    return { ...this.report(), removed }
  }

  report(): HostVmMountsReport {
    const mounts = [...this.#mounts.values()].map((mount) => ({
      ...renderReport(mount),
      ...this.#hooks().details?.(mount.wanted),
    }))
    return this.#revision === undefined ? { mounts } : { revision: this.#revision, mounts }
  }

  /** Before a pause. */
  listUnsaved(): HostUnsavedMount[] {
    const { details, isSilent } = this.#hooks()
    if (isSilent) return this.wanted.map(({ id }) => ({ id }))
    return this.wanted.flatMap((wanted) => {
      const unsaved = details?.(wanted).unsaved
      return unsaved ? [{ id: wanted.id, unsaved }] : []
    })
  }

  /** The agent dies, or the VM no longer runs: mounts and credentials were in memory only. */
  forget(): void {
    this.#revision = undefined
    this.#mounts.clear()
  }

  /** A check finds that the mount at this path is gone. */
  lose(mountPath: string, error: string): void {
    const mount = [...this.#mounts.values()].find(({ wanted }) => wanted.mount_path === mountPath)
    if (!mount) throw new Error(`there is no mount at ${mountPath}`)
    move(mount, 'lose', error)
  }

  #add(wanted: HostMount): void {
    const mount: FakeMount = { wanted, status: 'pending' }
    this.#mounts.set(wanted.id, mount)
    void this.#attempt(mount)
  }

  #change(wanted: HostMount): void {
    const mount = this.#mounts.get(wanted.id)
    if (mount) this.#replace(mount, wanted)
    else this.#add(wanted)
  }

  #replace(mount: FakeMount, wanted: HostMount): void {
    const isNewer = wanted.revision > mount.wanted.revision
    mount.wanted = wanted
    if (!isNewer) return
    if (mount.status === 'mounted') {
      if (!isAccepted(wanted)) move(mount, 'lose', REFUSED)
      return
    }
    if (mount.status === 'failed') move(mount, 'retry')
    void this.#attempt(mount)
  }

  async #attempt(mount: FakeMount): Promise<void> {
    const { wanted } = mount
    const isCurrent = () => this.#mounts.get(wanted.id) === mount && mount.wanted.revision === wanted.revision
    try {
      await new Promise(setImmediate) // Never within the request that asks for it.
      await this.#hooks().beforeMount?.(this.#id, wanted)
      if (!isAccepted(wanted)) throw new Error(REFUSED)
      if (isCurrent()) move(mount, 'mountDone')
    } catch (error) {
      if (isCurrent()) move(mount, 'mountFailed', (error as Error).message)
    }
  }

  async #unmount(mount: HostMount): Promise<HostVmMountsApplied['removed'][number]> {
    const warning = await this.#hooks().beforeUnmount?.(this.#id, mount)
    return warning === undefined ? { id: mount.id } : { id: mount.id, warning }
  }
}

const REFUSED = 'the store refused the credentials (403); rotate them'

const isAccepted = ({ credentials }: HostMount): boolean => credentials.secret_key !== WRONG_SECRET

function move(mount: FakeMount, name: MountMove, error?: string): void {
  const { from, to } = MOUNT_MOVES[name]
  if (!(from as readonly MountStatus[]).includes(mount.status)) {
    throw new Error(`a mount that is ${mount.status} cannot ${name}`)
  }
  mount.status = to
  if (error === undefined) delete mount.error
  else mount.error = error
}

const renderReport = ({ wanted: { id, revision }, status, error }: FakeMount): HostMountReport =>
  error === undefined ? { id, revision, status } : { id, revision, status, mount_error: error }
