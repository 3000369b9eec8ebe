/**
 * Stores the network of each slot in use as a file, so that the next host agent knows the rules of running sandboxes
 * before the control plane has sent them. The folder is below /run, because no sandbox survives a restart of the machine. That is
 * memory, so the calls are synchronous: another thread for each would take longer.
 */
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { HostVmNetwork } from '@warren/protocol'
import { Value } from 'typebox/value'

export type StoredSlot = { slot: number; ip: string; network: HostVmNetwork }

export class SlotStore {
  readonly #folder: string
  #isCreated = false

  constructor(folder: string) {
    this.#folder = folder
  }

  async write({ slot, ...rest }: StoredSlot): Promise<void> {
    if (!this.#isCreated) mkdirSync(this.#folder, { recursive: true, mode: 0o700 })
    this.#isCreated = true
    const path = this.#path(slot)
    writeFileSync(`${path}.new`, JSON.stringify(rest), { mode: 0o600 })
    renameSync(`${path}.new`, path)
  }

  async delete(slot: number): Promise<void> {
    rmSync(this.#path(slot), { force: true })
  }

  /**
   * Leaves out files that are damaged or written by an incompatible version: their sandboxes resolve no names until the
   * control plane sends their networks again.
   */
  async list(): Promise<StoredSlot[]> {
    const files = await readdir(this.#folder).catch(() => [])
    const stored = await Promise.all(
      files.flatMap((name) => /^(\d+)\.json$/.exec(name)?.[1] ?? []).map((slot) => this.#find(Number(slot))),
    )
    return stored.flatMap((one) => one ?? [])
  }

  async #find(slot: number): Promise<StoredSlot | undefined> {
    try {
      const { ip, network } = JSON.parse(await readFile(this.#path(slot), 'utf8')) as Partial<StoredSlot>
      return typeof ip === 'string' && Value.Check(HostVmNetwork, network) ? { slot, ip, network } : undefined
    } catch {
      return undefined
    }
  }

  #path(slot: number): string {
    return join(this.#folder, `${slot}.json`)
  }
}
