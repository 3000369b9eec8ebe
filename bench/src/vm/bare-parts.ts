/** The files of a bare VM: the same kernel, guest agent and image that Warren uses. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { GUEST_PROGRAMS } from '../../../host-agent/src/images/guest-programs.ts'
import { openImageStore, readCacheDir } from '../../../host-agent/src/images/store.ts'
import type { Parts } from '../../../host-agent/src/testing/bare-vm.ts'
import { detectMachine } from '../../../host-agent/src/vmm/machine.ts'
import type { Fixture } from '../row.ts'

const IMAGE = 'debian:13'

export const bareParts: Fixture<Parts> = async (run) => {
  const store = await openImageStore({ cacheDir: readCacheDir(process.env), log: { info() {}, warn() {} } })
  const { machine } = await detectMachine()
  const kernel = await store.ensureKernel()
  const initramfs = await store.ensureInitramfs(kernel, GUEST_PROGRAMS)
  const image = await store.ensure(IMAGE)
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-bare-'))
  run.defer(() => rm(folder, { recursive: true, force: true }))
  return { machine, kernel: kernel.vmlinuz, initramfs: initramfs.path, image: image.path, folder }
}
