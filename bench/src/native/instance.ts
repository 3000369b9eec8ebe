/**
 * Warren whose sandboxes are processes of this machine instead of virtual machines. The host agent starts native-vmm in the
 * place of QEMU, and the guest agent listens on the same sockets; everything else is as in production. What is measured
 * through its API is the cost of Warren, without a guest that hides it.
 */
import path from 'node:path'
import { ROOT } from '../child.ts'
import type { Fixture, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { type Instance, SMALL, startInstance } from '../vm/instance.ts'

const PROGRAMS = path.join(ROOT, 'native-vmm/target/warren')
export const SPAWN_PROGRAM = path.join(PROGRAMS, 'spawn')
/** A setting that a Warren from before it existed ignores. */
export const NATIVE = { WARREN_VMM_PROGRAM: path.join(PROGRAMS, 'native-vmm') }

export const nativeInstance: Fixture<Instance> = (run) => startInstance(run, { root: ROOT, env: NATIVE })

/** Throws if the sandbox is a virtual machine: then the row would measure something else than it says. */
export async function createNative(api: Api, more: Record<string, unknown> = {}): Promise<string> {
  const { id } = await api.create(SMALL, more)
  await api.exec(id, 'test', ['-x', '/guest-agent'])
  return id
}

export async function withNative<T>(
  run: Run,
  work: (api: Api, id: string) => Promise<T>,
  more: Record<string, unknown> = {},
): Promise<T> {
  const { api } = await run.open(nativeInstance)
  const id = await createNative(api, more)
  try {
    return await work(api, id)
  } finally {
    await api.delete(id)
  }
}
