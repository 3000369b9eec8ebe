/** The key of a base: a hash of everything that a clone must share with it. */
import { createHash } from 'node:crypto'
import type { Deps } from '../deps.ts'
import { digestOf, hasOperatorSettings } from '../guest/operator-settings.ts'
import type { Image } from '../images/store.ts'
import { renderArgs, type Shape } from '../vmm/args.ts'
import { BASE_DISK_MIB } from './base.ts'

/** `inputs` are stored in the manifest of the base. */
export type WantedBase = { key: string; image: Image; shape: Shape; diskMib: number; inputs: object }

type KeyDeps = Pick<Deps, 'machine' | 'kernel' | 'initramfs' | 'network' | 'operatorSettings'>

export function describeBase(deps: KeyDeps, image: Image, { vcpu, mem_mib }: Shape, diskMib: number): WantedBase {
  const shape = { vcpu, mem_mib }
  const baseDiskMib = Math.max(Math.min(diskMib, BASE_DISK_MIB), image.minDiskMib)
  const inputs = describeInputs(deps, image, shape, baseDiskMib)
  const key = createHash('sha256').update(JSON.stringify(inputs)).digest('hex').slice(0, 32)
  return { key, image, shape, diskMib: baseDiskMib, inputs }
}

/** QEMU's command line is included because it lists the devices in order. */
function describeInputs(deps: KeyDeps, image: Image, shape: Shape, diskMib: number) {
  const { machine, kernel, initramfs } = deps
  const line = renderArgs({ start: 'state', machine, shape, socketDir: '', mtu: deps.network.host.mtu, layers: 0 })
  const settings = hasOperatorSettings(deps.operatorSettings)
    ? { operatorSettings: digestOf(deps.operatorSettings) }
    : {}
  return {
    ...{ machine, kernel: kernel.digest, initramfs: initramfs.digest, image: image.digest, shape, diskMib, line },
    ...settings,
  }
}
