/**
 * What each slot in use was told, in files: a host agent that starts again knows the rules of sandboxes that live on,
 * before it has heard from the control plane. Below /run, because after a restart of the machine none of them lives.
 */
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { HostVmNetwork } from '@warren/protocol'
import { Value } from 'typebox/value'

export type Kept = { slot: number; ip: string; network: HostVmNetwork }

export class KeptNetworks {
  readonly #folder: string
  readonly #made: Promise<unknown>

  constructor(folder: string) {
    this.#folder = folder
    this.#made = mkdir(folder, { recursive: true, mode: 0o700 })
    this.#made.catch(() => {}) // Whoever writes is told.
  }

  async write({ slot, ...rest }: Kept): Promise<void> {
    await this.#made
    const path = this.#path(slot)
    await writeFile(`${path}.new`, JSON.stringify(rest), { mode: 0o600 })
    await rename(`${path}.new`, path)
  }

  async remove(slot: number): Promise<void> {
    await rm(this.#path(slot), { force: true })
  }

  /** A file that is damaged, or of an older form, is as good as none: its sandbox stays closed until we are told. */
  async readAll(): Promise<Kept[]> {
    const names = await readdir(this.#folder).catch(() => [])
    const kept = await Promise.all(
      names.flatMap((name) => /^(\d+)\.json$/.exec(name)?.[1] ?? []).map((one) => this.#read(Number(one))),
    )
    return kept.flatMap((one) => one ?? [])
  }

  async #read(slot: number): Promise<Kept | undefined> {
    try {
      const { ip, network } = JSON.parse(await readFile(this.#path(slot), 'utf8')) as Partial<Kept>
      return typeof ip === 'string' && Value.Check(HostVmNetwork, network) ? { slot, ip, network } : undefined
    } catch {
      return undefined
    }
  }

  #path(slot: number): string {
    return join(this.#folder, `${slot}.json`)
  }
}
