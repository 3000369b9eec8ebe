/**
 * After a start: what runs and belongs is adopted, everything else is removed.
 *
 * A record in `creating` is a create that nobody waits for any more: taken back. One in `running` whose QEMU lives is
 * adopted with its processes untouched; whose QEMU is gone, it is reported dead with its disk kept. Sockets, slots and
 * cgroups that no record names are left-overs of a moment between two steps.
 */
import { readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/text'
import type { Deps } from '../deps.ts'
import { socketDirOf, socketsIn } from './launch.ts'
import { endProcess, isAlive, markProcess } from './process.ts'
import { SOCKETS } from './qemu/args.ts'
import { Qmp } from './qemu/qmp.ts'
import type { VmRecord } from './registry.ts'
import { removeVm } from './remove.ts'
import { Vm } from './vm.ts'
import type { Vms } from './vms.ts'

const MONITOR_LIMIT_MS = 5_000

export async function adoptAll(deps: Deps, vms: Vms): Promise<{ adopted: number; dead: number; removed: number }> {
  const { records, broken } = await deps.registry.list()
  for (const id of broken) await deps.registry.remove(id)
  let [adopted, dead, removed] = [0, 0, broken.length]
  await Promise.all(
    records.map(async (record) => {
      if (record.state === 'creating') {
        await endOrphans(deps, record.id)
        await removeVm(deps, record)
        removed++
      } else if (await adoptOne(deps, vms, record)) adopted++
      else dead++
    }),
  )
  await removeStrays(deps, new Set(vms.records().map((record) => record.id)))
  return { adopted, dead, removed }
}

async function adoptOne(deps: Deps, vms: Vms, record: VmRecord): Promise<boolean> {
  const socketDir = socketDirOf(deps, record.id)
  try {
    if (record.state === 'dead') throw new Error(record.reason ?? 'it died before')
    if (!record.qemu || !isAlive(record.qemu)) throw new Error('its QEMU ended while nobody watched')
    const qmp = await Qmp.connect(path.join(socketDir, SOCKETS.monitor), AbortSignal.timeout(MONITOR_LIMIT_MS))
    if (record.slot !== undefined) deps.network.slots.adopt(record.slot, record.ip)
    vms.adopt(new Vm(record, qmp, socketsIn(socketDir)))
    return true
  } catch (error) {
    if (record.qemu) await endProcess(record.qemu)
    // Its slot goes now: the number will be somebody else's by the time this VM is deleted.
    if (record.slot !== undefined) await deps.network.slots.release(record.slot)
    delete record.slot
    Object.assign(record, { state: 'dead', reason: errorText(error) })
    await deps.registry.write(record)
    vms.mourn(record)
    return false
  }
}

/** QEMU started a moment before its record could name it: found by the folder its sockets are in. */
async function endOrphans(deps: Deps, id: string): Promise<void> {
  for (const pid of await findQemus(deps, (args) => args.some((arg) => arg.includes(`${socketDirOf(deps, id)}/`)))) {
    const mark = markProcess(pid)
    if (mark) await endProcess(mark)
  }
}

async function removeStrays(deps: Deps, known: Set<string>): Promise<void> {
  const ours = `path=${deps.config.runDir}/`
  for (const pid of await findQemus(deps, (args) => args.some((arg) => arg.includes(ours)))) {
    const mark = markProcess(pid)
    const id = await idOf(deps, pid)
    if (mark && id !== undefined && !known.has(id)) await endProcess(mark)
  }
  for (const id of await readdir(deps.config.runDir)) {
    if (!known.has(id)) await rm(path.join(deps.config.runDir, id), { recursive: true, force: true })
  }
  for (const name of await deps.cgroups.list()) if (!known.has(name)) await deps.cgroups.remove(name)
}

async function findQemus(deps: Deps, matches: (args: string[]) => boolean): Promise<number[]> {
  const found: number[] = []
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const args = await argsOf(Number(name))
    if (args[0]?.endsWith(deps.machine.binary) && matches(args)) found.push(Number(name))
  }
  return found
}

async function idOf(deps: Deps, pid: number): Promise<string | undefined> {
  const monitor = (await argsOf(pid)).find((arg) => arg.includes(`${deps.config.runDir}/`))
  return monitor?.split(`${deps.config.runDir}/`)[1]?.split('/')[0]
}

async function argsOf(pid: number): Promise<string[]> {
  return (await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')).split('\0')
}
