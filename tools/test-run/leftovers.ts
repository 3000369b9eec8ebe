/**
 * What a test run leaves on the machine. A run has a folder in the temporary directory in which all of its tests work: a
 * process belongs to the run when its command line, environment or working directory names that folder, or when it is in
 * a cgroup of an instance that the run recorded. Namespaces, interfaces, tables, routes, cgroups and folders in /run carry
 * the name of their instance. So everything that is found here is provably of that run.
 */
import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { findCgroupLayout } from '../../host-agent/src/cgroups/layout.ts'
import { hostTable, NETNS_FOLDER, outerVethPrefix, slotOfNetns, slotOfVeth } from '../../host-agent/src/net/names.ts'

/** Short, because sockets are made below it. */
const PREFIX = 'warren-t-'
const OWNER_FILE = 'runner.json'
const LEDGER_FILE = 'instances'

export type TestRun = { folder: string; ledger: string }
export type Leftover = { name: string; remove: () => void }

/** A process that was killed needs a moment until it is gone. */
const EXIT_LIMIT_MS = 10_000

export function startTestRun(): TestRun {
  const folder = mkdtempSync(path.join(tmpdir(), PREFIX))
  chmodSync(folder, 0o755) // Some tests run programs as another user.
  writeFileSync(path.join(folder, OWNER_FILE), JSON.stringify(identify(process.pid)))
  const ledger = path.join(folder, LEDGER_FILE)
  writeFileSync(ledger, '')
  return { folder, ledger }
}

/** Runs whose runner was killed. A run without a record of its runner is that of a runner that starts right now. */
export function findDeadRuns(root = tmpdir()): TestRun[] {
  return readdirSync(root)
    .filter((name) => name.startsWith(PREFIX))
    .map((name) => ({ folder: path.join(root, name), ledger: path.join(root, name, LEDGER_FILE) }))
    .filter(({ folder }) => {
      const file = path.join(folder, OWNER_FILE)
      if (!existsSync(file)) return false
      const owner = JSON.parse(readFileSync(file, 'utf8')) as Identity
      return identify(owner.pid)?.startedAt !== owner.startedAt
    })
}

/** Removes everything of a run, and returns what it was besides the folder of the run. */
export async function removeTestRun(run: TestRun): Promise<string[]> {
  const names = new Set<string>()
  for (const deadline = Date.now() + EXIT_LIMIT_MS; ; await delay(100)) {
    const found = await listLeftovers(run)
    for (const leftover of found) {
      names.add(leftover.name)
      leftover.remove()
    }
    if (found.length === 0 || Date.now() > deadline) break
  }
  rmSync(run.folder, { recursive: true, force: true })
  return [...names]
}

/** Processes first: the rest can be removed only after them. */
export async function listLeftovers(run: TestRun): Promise<Leftover[]> {
  const instances = readLedger(run)
  const processes = listProcesses(run, instances)
  if (processes.length > 0) return processes
  return [
    ...listMounts(run),
    ...listNamespaces(instances),
    ...listLinks(instances),
    ...listTables(instances),
    ...listRoutes(instances),
    ...(await listCgroups(instances)),
    ...listRunFolders(instances),
  ]
}

function readLedger({ ledger }: TestRun): string[] {
  if (!existsSync(ledger)) return []
  return [...new Set(readFileSync(ledger, 'utf8').split('\n'))].filter((line) => /^[0-9a-f]{8}$/.test(line))
}

type Identity = { pid: number; startedAt: string }

/** Pids are reused; a pid with its start time is not. */
function identify(pid: number): Identity | undefined {
  const stat = readText(`/proc/${pid}/stat`)
  // The command in parentheses may contain spaces. Start time is field 22.
  const startedAt = stat?.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  return startedAt === undefined ? undefined : { pid, startedAt }
}

function listProcesses({ folder }: TestRun, instances: string[]): Leftover[] {
  const marks = [folder, ...instances.map((instance) => `/warren-${instance}/`)]
  const isMarked = (text: string | undefined) => marks.some((mark) => text?.includes(mark))
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => {
      const at = (file: string) => `/proc/${pid}/${file}`
      if (/\) [ZX]/.test(readText(at('stat')) ?? ') X')) return false
      const texts = ['cmdline', 'environ', 'cgroup'].map((file) => readText(at(file)))
      return [...texts, readLink(at('cwd'))].some(isMarked)
    })
    .map((pid) => ({
      name: `process ${pid}: ${(readText(`/proc/${pid}/cmdline`) ?? '').replaceAll('\0', ' ').slice(0, 120)}`,
      remove: () => kill(Number(pid)),
    }))
}

function listMounts({ folder }: TestRun): Leftover[] {
  return (readText('/proc/mounts') ?? '')
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
    .filter((at) => at.startsWith(`${folder}/`))
    .reverse()
    .map((at) => ({ name: `mount ${at}`, remove: () => run('umount', '--lazy', at) }))
}

const listNamespaces = (instances: string[]): Leftover[] =>
  list(NETNS_FOLDER)
    .filter((name) => instances.some((instance) => slotOfNetns(instance, name) !== undefined))
    .map((name) => ({ name: `network namespace ${name}`, remove: () => run('ip', 'netns', 'delete', name) }))

const listLinks = (instances: string[]): Leftover[] =>
  list('/sys/class/net')
    .filter((name) =>
      instances.some((one) => name.startsWith(outerVethPrefix(one)) && slotOfVeth(one, name) !== undefined),
    )
    .map((name) => ({ name: `interface ${name}`, remove: () => run('ip', 'link', 'delete', name) }))

function listTables(instances: string[]): Leftover[] {
  const wanted = new Set(instances.map(hostTable))
  return run('nft', 'list', 'tables')
    .split('\n')
    .map((line) => line.trim().split(' '))
    .filter(([, , table]) => table !== undefined && wanted.has(table))
    .map(([, family, table]) => ({
      name: `nft table ${family} ${table}`,
      remove: () => run('nft', 'delete', 'table', family!, table!),
    }))
}

/** The metric of Warren's blackhole route is its instance as a number. */
function listRoutes(instances: string[]): Leftover[] {
  const wanted = new Set(instances.map((instance) => String(Number.parseInt(instance, 16))))
  return run('ip', 'route', 'show', 'type', 'blackhole')
    .split('\n')
    .filter((line) => wanted.has(/ metric (\d+)/.exec(line)?.[1] ?? ''))
    .map((line) => ({
      name: `route ${line.trim()}`,
      remove: () => run('ip', 'route', 'del', ...line.trim().split(/ +/)),
    }))
}

async function listCgroups(instances: string[]): Promise<Leftover[]> {
  const layout = await findCgroupLayout()
  if (layout === undefined) return []
  const roots = layout.version === 2 ? [layout.root] : [layout.cpu, layout.memory, layout.cpuacct ?? layout.cpu]
  const parents = [...new Set(roots)].flatMap((root) => instances.map((one) => path.join(root, `warren-${one}`)))
  return parents.filter(existsSync).map((parent) => ({
    name: `cgroup ${parent}`,
    remove: () => {
      for (const name of list(parent)) if (existsSync(path.join(parent, name, 'cgroup.procs'))) remove(parent, name)
      remove(parent)
    },
  }))
  function remove(...parts: string[]): void {
    try {
      rmdirSync(path.join(...parts))
    } catch {
      // A process in it is still exiting; the caller tries again.
    }
  }
}

const listRunFolders = (instances: string[]): Leftover[] =>
  instances
    .map((instance) => `/run/warren-${instance}`)
    .filter(existsSync)
    .map((folder) => ({ name: `folder ${folder}`, remove: () => rmSync(folder, { recursive: true, force: true }) }))

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // It exited meanwhile.
  }
}

const list = (folder: string): string[] => (existsSync(folder) ? readdirSync(folder) : [])

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
