/**
 * What tests leave on the machine outside of their folders. A process belongs to a folder when its command line, environment
 * or working directory names it. Everything else has the name of the Warren instance that made it (../instance-name.ts), so
 * what is found here is provably of that folder or of one of these instances.
 */
import { spawnSync } from 'node:child_process'
import { globSync, readdirSync, readFileSync, readlinkSync, rmdirSync, rmSync } from 'node:fs'
import path from 'node:path'

export type Leftover = {
  kind: 'process' | 'mount' | 'loop device' | 'namespace' | 'interface' | 'table' | 'route' | 'cgroup' | 'folder'
  name: string
  /** May have no effect as long as processes use it. */
  remove(): void
}
export type Owner = { folder: string; instances: readonly string[] }

const COMMAND_SHOWN = 200

/** In the order in which they can be removed. */
export const listLeftovers = (owner: Owner): Leftover[] => [
  ...listProcesses(owner),
  ...listMounts(owner),
  ...listLoopDevices(owner),
  ...list(owner, 'namespace', (instance) => `/run/netns/warren-${instance}-*`, deleteNamespace),
  ...list(owner, 'interface', (instance) => `/sys/class/net/w${instance}*`, deleteInterface),
  ...listTables(owner),
  ...listRoutes(owner),
  // cgroup v2 has one tree, v1 one for each controller.
  ...list(owner, 'cgroup', (instance) => `/sys/fs/cgroup/{,*/}warren-${instance}`, deleteCgroup),
  ...list(owner, 'folder', (instance) => `/run/warren-${instance}{,-*}`, deleteFolder),
]

function list(
  { instances }: Owner,
  kind: Leftover['kind'],
  patternOf: (instance: string) => string,
  remove: (file: string) => void,
): Leftover[] {
  return instances.flatMap((instance) =>
    globSync(patternOf(instance)).map((name) => ({ kind, name, remove: () => remove(name) })),
  )
}

/** A VMM is in a cgroup of its instance and names sockets in its run folder; netd and the launcher get it as an argument. */
function listProcesses({ folder, instances }: Owner): Leftover[] {
  const marks = [folder, ...instances.flatMap((instance) => [`warren-${instance}`, `main.ts\0${instance}`])]
  const isMarked = (text: string | undefined) => marks.some((mark) => text?.includes(mark))
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => {
      const at = (file: string) => `/proc/${pid}/${file}`
      if (/\) [ZX]/.test(readText(at('stat')) ?? ') X')) return false
      const texts = ['cmdline', 'environ', 'cgroup'].map((file) => readText(at(file)))
      return [...texts, readLink(at('cwd'))].some(isMarked)
    })
    .map((pid) => {
      const command = (readText(`/proc/${pid}/cmdline`) ?? '').replaceAll('\0', ' ')
      return { kind: 'process', name: `${pid} ${command.slice(0, COMMAND_SHOWN)}`, remove: () => kill(Number(pid)) }
    })
}

/** The newest first, because one may be inside another. */
const listMounts = ({ folder }: Owner): Leftover[] =>
  (readText('/proc/self/mounts') ?? '')
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
    .filter((at) => at.startsWith(`${folder}/`))
    .reverse()
    .map((at) => ({ kind: 'mount', name: at, remove: () => run('umount', '--lazy', at) }))

const listLoopDevices = ({ folder }: Owner): Leftover[] =>
  run('losetup', '--list', '--noheadings', '--output=NAME,BACK-FILE')
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line.includes(`${folder}/`))
    .map((line) => ({ kind: 'loop device', name: line, remove: () => run('losetup', '--detach', line.split(' ')[0]!) }))

function listTables({ instances }: Owner): Leftover[] {
  const wanted = new Set(instances.flatMap((instance) => [`warren_${instance}`, `warren_proxy_${instance}`]))
  return run('nft', 'list', 'tables')
    .split('\n')
    .map((line) => line.trim().split(' '))
    .filter(([, , table]) => wanted.has(table ?? ''))
    .map(([, family, table]) => ({
      kind: 'table',
      name: `${family} ${table}`,
      remove: () => run('nft', 'delete', 'table', family!, table!),
    }))
}

/** Warren's route for unused addresses of its block; its metric is the instance as a number. */
function listRoutes({ instances }: Owner): Leftover[] {
  const wanted = new Set(instances.map((instance) => String(Number.parseInt(instance, 16))))
  return run('ip', 'route', 'show', 'table', 'all', 'type', 'blackhole')
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => wanted.has(/ metric (\d+)/.exec(line)?.[1] ?? ''))
    .map((line) => ({ kind: 'route', name: line, remove: () => run('ip', 'route', 'del', ...line.split(/ +/)) }))
}

const deleteNamespace = (file: string): void => void run('ip', 'netns', 'delete', path.basename(file))
const deleteInterface = (file: string): void => void run('ip', 'link', 'delete', path.basename(file))
const deleteFolder = (folder: string): void => rmSync(folder, { recursive: true, force: true })

function deleteCgroup(folder: string): void {
  for (const child of globSync(path.join(folder, '*/cgroup.procs'))) deleteCgroup(path.dirname(child))
  try {
    rmdirSync(folder)
  } catch {
    // A process in it is still exiting; the caller tries again.
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // It exited meanwhile.
  }
}

/** Undefined when it does not exist any more or belongs to another user. */
function readText(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
}

function readLink(file: string): string | undefined {
  try {
    return readlinkSync(file)
  } catch {
    return undefined
  }
}

/** Returns nothing where the program does not exist: then there are no such leftovers either. */
const run = (command: string, ...args: string[]): string => spawnSync(command, args, { encoding: 'utf8' }).stdout ?? ''
