/**
 * The host agent: the only root process, one per machine.
 *
 * Order of events: what this machine can run; the kernel, the initramfs with the guest agent, the default image; the
 * network; then what a predecessor left running is adopted, the rest of it and superseded images are removed; only then
 * the door opens. Other images are built and bases booted in the background. Stopping closes the door and leaves every
 * VM running: restarting Warren pauses nobody. With none there, it leaves nothing.
 */
import { chmod, mkdir, rm, rmdir } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import path from 'node:path'
import { ConfigError } from '@warren/kit/config'
import { createLog, type Log, logFormat } from '@warren/kit/log'
import { onStopSignal, StopStack } from '@warren/kit/stop'
import { errorText } from '@warren/kit/text'
import { createHostApp } from './app.ts'
import { pruneBases } from './bases/prune.ts'
import { openCgroups } from './cgroups/cgroups.ts'
import { findCgroupLayout } from './cgroups/layout.ts'
import { chooseNetwork, networkStateOf } from './choose-network.ts'
import { type Config, readHostConfig } from './config.ts'
import type { Deps } from './deps.ts'
import { openImageStore } from './images/index.ts'
import { createLimiter } from './limiter.ts'
import { createPool } from './pool/pool.ts'
import { prepareAll } from './prepare.ts'
import { pruneImages } from './prune-images.ts'
import { openSnapshotStore } from './snapshots/store.ts'
import { startWorkerPool } from './snapshots/worker-pool.ts'
import { createStandby } from './standby/standby.ts'
import { createCompactor } from './vmm/disk/compact.ts'
import { detectMachine } from './vmm/machine.ts'
import { adoptAll } from './vms/adopt.ts'
import { openRegistry } from './vms/registry.ts'
import { Vms } from './vms/vms.ts'

const STOP_LIMIT_MS = 2_000
/** Put there by tools/machine.sh. */
const GUEST_AGENT = path.resolve(import.meta.dirname, '../../guest-agent/target/warren/guest-agent')
/** Above every real account and every range that containers are usually given. */
const FIRST_UID = 1_610_612_736

const config = readConfigOrExit()
const log = createLog({
  name: 'host-agent',
  level: config.logLevel,
  format: logFormat(config.logFormat, process.stdout.isTTY),
})
const stack = new StopStack()
const stopping = new AbortController()
onStopSignal(() => void stop(0))
process.on('disconnect', () => void stop(0))
process.on('uncaughtException', (error) => die(error))
process.on('unhandledRejection', (error) => die(error))

try {
  await start(config, log, stack)
  process.send?.({ ready: true, socket: config.socket })
} catch (error) {
  // Whoever started us tells people; alone, the log does.
  if (process.send) process.send({ failed: errorText(error) })
  else log.fatal({ err: error }, 'host agent could not start')
  await stop(1)
}

async function start(config: Config, log: Log, stack: StopStack): Promise<void> {
  if (process.getuid?.() !== 0) throw new Error('the host agent needs root: it makes networks and virtual machines')
  await mkdir(config.runDir, { recursive: true, mode: 0o711 })
  await chmod(config.runDir, 0o711)
  stack.add('run folder', () => rmdir(config.runDir).catch(() => {})) // It stays while sandboxes have sockets in it.
  const { machine, why } = await detectMachine()
  log.info({ machine, why }, 'machine')

  const images = await openImageStore({ cacheDir: config.cacheDir, log })
  const kernel = await told('guest kernel', () => images.ensureKernel())
  const initramfs = await images.ensureInitramfs(kernel, GUEST_AGENT)
  await told(`image ${config.defaultRootfs}`, () => images.ensure(config.defaultRootfs, tell))

  const layout = await findCgroupLayout()
  if (!layout) throw new Error('no cgroups with cpu and memory controllers are mounted; npm run doctor says more')
  const cgroups = await openCgroups(layout, config.instance)
  const { network, cidr } = await chooseNetwork(config, log)
  stack.add('network', async () => {
    // With sandboxes here it stays; with none there is no reason to leave rules, routes and groups behind.
    const isEmpty = vms.records().every((record) => record.body === undefined)
    if (isEmpty) await network.netd.request('tearDownHost')
    await network.close()
    if (!isEmpty) return
    await cgroups.close()
    await rm(networkStateOf(config), { recursive: true, force: true })
  })
  const deps: Deps = {
    config: { ...config, cidr },
    log,
    machine,
    kernel,
    initramfs,
    images,
    network,
    cgroups,
    registry: openRegistry(path.join(config.dataDir, 'vms')),
    snapshots: await openSnapshotStore(path.join(config.dataDir, 'snapshots')),
    workers: startWorkerPool(Math.max(availableParallelism(), 2)),
    pool: createPool(() => deps, config.poolMib),
    standby: createStandby(() => deps, config.standbyMib),
    compactor: createCompactor(() => deps),
    uidOf: (slot) => FIRST_UID + (Number.parseInt(config.instance.slice(0, 3), 16) << 16) + (slot & 0xffff),
    stopping: stopping.signal,
    restoreLimiter: createLimiter(availableParallelism()),
    buildLimiter: createLimiter(1),
  }
  const vms = new Vms(deps)
  const found = await adoptAll(deps, vms)
  await network.reap()
  network.slots.start()
  log.info(found, 'looked after what was here')
  await pruneBases(deps, vms.records())
  await pruneImages(deps)

  deps.pool.start()
  stack.add('pool', () => deps.pool.close())
  stack.add('standby', () => deps.standby.close())
  stack.add('merging', () => deps.compactor.close())
  const app = createHostApp(deps, vms)
  await rm(config.socket, { force: true })
  await app.listen(config.socket)
  await chmod(config.socket, 0o600)
  stack.add('door', () => app.close())
  const background = prepareAll(deps, tell)
  stack.add('background work', () => background)
}

/** For the launcher, which shows it to people. */
function tell(text: string): void {
  if (process.connected) process.send?.({ progress: text })
  log.debug(text)
}

async function told<T>(what: string, work: () => Promise<T>): Promise<T> {
  tell(what)
  return work()
}

async function stop(exitCode: number): Promise<never> {
  stopping.abort(new Error('the host agent stops'))
  await stack.run(log, STOP_LIMIT_MS)
  process.exit(exitCode)
}

/** After an error nobody foresaw no state in memory can be trusted; what runs is found again at the next start. */
function die(error: unknown): never {
  log.fatal({ err: error }, 'unexpected error, ending')
  process.exit(70)
}

function readConfigOrExit(): Config {
  try {
    return readHostConfig(process.env)
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    process.stderr.write(`host agent: ${error.message}\n`)
    process.exit(78)
  }
}
