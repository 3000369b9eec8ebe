/**
 * What a Warren has on the machine outside its data directory. Everything has the name of the instance, which follows
 * from the data directory (host-agent/src/config.ts), so the leftovers of one instance are not mistaken for those of another.
 */
import { spawnSync } from 'node:child_process'
import { globSync, readdirSync, readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { instanceName } from '@warren/kit/instance-name'

export type Leftover = { kind: string; name: string }

const CLEAN_UP = path.resolve(import.meta.dirname, '../../../host-agent/src/clean-up/main.ts')
/** The number that marks the routes of every Warren (host-agent/src/net/netd/netlink/route.ts). */
const ROUTE_PROTOCOL = '87'

export function listLeftovers(dataDir: string): Leftover[] {
  const instance = instanceName(dataDir)
  const files = (kind: string, pattern: string) => globSync(pattern).map((name) => ({ kind, name }))
  const lines = (kind: string, text: string, part: string) =>
    text
      .split('\n')
      .filter((line) => line.includes(part))
      .map((name) => ({ kind, name }))
  return [
    ...listInstanceProcesses(instance),
    ...files('folder', `/run/warren-${instance}`),
    // cgroup v2 has one tree, v1 one for each controller.
    ...files('cgroup', `/sys/fs/cgroup/{,*/}warren-${instance}`),
    ...files('namespace', `/run/netns/warren-${instance}*`),
    ...files('interface', `/sys/class/net/w${instance}*`),
    ...lines('table', run('nft', ['list', 'tables']), `warren_${instance}`),
    ...listRoutes(dataDir),
    ...lines('mount', readFileSync('/proc/self/mounts', 'utf8'), dataDir),
    ...lines('loop device', run('losetup', ['--list', '--noheadings']), dataDir),
  ]
}

/**
 * Removes what a test left on the machine whose Warren was killed: with the program that `warren start` runs after a
 * host agent was killed. Sandboxes would keep running, so their records are deleted first.
 */
export async function removeLeftovers(dataDir: string): Promise<void> {
  if (listLeftovers(dataDir).length === 0) return
  await rm(path.join(dataDir, 'vms'), { recursive: true, force: true })
  const env = { PATH: process.env.PATH, WARREN_DATA_DIR: dataDir }
  const { status, stderr } = spawnSync(process.execPath, [CLEAN_UP], { env, encoding: 'utf8' })
  if (status !== 0) throw new Error(`failed to remove the leftovers of ${dataDir}: ${stderr}`)
}

/** QEMU names its sockets in the instance's run folder; netd and the launcher get the instance as an argument. */
function listInstanceProcesses(instance: string): Leftover[] {
  return readdirSync('/proc').flatMap((pid) => {
    if (!/^\d+$/.test(pid)) return []
    try {
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
      if (!command.includes(`warren-${instance}`) && !command.includes(`main.ts ${instance}`)) return []
      return { kind: 'process', name: `${pid} ${command.slice(0, 200)}` }
    } catch {
      return [] // It exited meanwhile.
    }
  })
}

/** The route that rejects packets to unused addresses of the instance's block. */
function listRoutes(dataDir: string): Leftover[] {
  const file = path.join(dataDir, 'network.json')
  const [found] = globSync(file)
  if (found === undefined) return []
  const { cidr } = JSON.parse(readFileSync(file, 'utf8')) as { cidr: string }
  const routes = run('ip', ['route', 'show', 'table', 'all', 'proto', ROUTE_PROTOCOL]).split('\n')
  return routes.filter((line) => line.includes(cidr)).map((name) => ({ kind: 'route', name }))
}

const run = (command: string, args: string[]): string => spawnSync(command, args, { encoding: 'utf8' }).stdout
