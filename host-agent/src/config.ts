/** Every setting of the host agent. The README's table lists them for people. */
import { createHash } from 'node:crypto'
import { totalmem } from 'node:os'
import path from 'node:path'
import { choice, integer, list, readConfig, text } from '@warren/kit/config'

const SETTINGS = {
  dataDir: text('WARREN_DATA_DIR', ''),
  cacheDir: text('WARREN_CACHE_DIR', ''),
  socket: text('WARREN_HOST_SOCKET', ''),
  hostId: text('WARREN_HOST_ID', '127.0.0.1'),
  region: choice('WARREN_REGION', 'eu', ['eu', 'us']),
  /** Empty: the first block of 100.64.0.0/10 that is free (choose-network.ts). */
  cidr: text('WARREN_SANDBOX_CIDR', ''),
  /** Private blocks that egress rules of sandboxes may open, such as 10.20.0.0/16; none when empty. */
  egressPrivateCidrs: list('WARREN_EGRESS_PRIVATE_CIDRS'),
  /** 0: what the machine has, less what it needs itself. */
  memMib: integer('WARREN_HOST_MEM_MIB', 0, { min: 0, max: 100_000_000 }),
  /** For bodies that wait for a create; -1: a tenth of the above, at most 2 GiB. */
  poolMib: integer('WARREN_POOL_MIB', -1, { min: -1, max: 1_000_000 }),
  /** For bodies of sandboxes that were paused lately; -1: as for the pool. */
  standbyMib: integer('WARREN_STANDBY_MIB', -1, { min: -1, max: 1_000_000 }),
  defaultRootfs: text('WARREN_DEFAULT_ROOTFS', 'debian:13'),
  /** Built in the background after the default; `none` builds no more. */
  backgroundImages: list('WARREN_BACKGROUND_IMAGES'),
  /** Where guests may also reach the API, if it listens beyond loopback. */
  apiPort: integer('WARREN_PORT', 8080, { min: 0, max: 65_535 }),
  logLevel: choice('WARREN_LOG_LEVEL', 'info', ['trace', 'debug', 'info', 'warn', 'error', 'fatal']),
  logFormat: choice('WARREN_LOG_FORMAT', 'auto', ['auto', 'json', 'pretty']),
}

/** For the kernel, the page cache, PostgreSQL and ourselves. */
const HOST_NEEDS_MIB = 2048

export type Config = ReturnType<typeof readHostConfig>

export function readHostConfig(env: Record<string, string | undefined>) {
  const config = readConfig(SETTINGS, env)
  const dataDir = path.resolve(config.dataDir || '.warren')
  const home = env.HOME || '/root'
  const cacheDir = config.cacheDir || path.join(env.XDG_CACHE_HOME || path.join(home, '.cache'), 'warren')
  /** Tells this instance's namespaces, interfaces, cgroups and users from those of others on the machine. */
  const instance = createHash('sha256').update(dataDir).digest('hex').slice(0, 8)
  const memMib = config.memMib || Math.max(Math.floor(totalmem() / 1024 ** 2) - HOST_NEEDS_MIB, 512)
  const tenth = Math.min(Math.floor(memMib / 10), 2048)
  return {
    ...config,
    dataDir,
    cacheDir,
    instance,
    socket: config.socket || path.join(dataDir, 'host.sock'),
    /** Sockets of VMs: on a file system where a path is short and a user of QEMU may pass. */
    runDir: `/run/warren-${instance}`,
    memMib,
    poolMib: config.poolMib >= 0 ? config.poolMib : tenth,
    standbyMib: config.standbyMib >= 0 ? config.standbyMib : tenth,
    backgroundImages:
      config.backgroundImages.length > 0 ? config.backgroundImages.filter((name) => name !== 'none') : ['devbox:1'],
  }
}
