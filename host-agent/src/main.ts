/**
 * The host agent: the only root process, one per machine.
 *
 * Order of events at start:
 *
 *   1. Find out what this machine can run.
 *   2. Build what is missing of the guest kernel, the initramfs with the guest agent, and the default image.
 *   3. Open the network.
 *   4. Adopt the VMs that a previous host agent left running; remove its other leftovers and superseded images.
 *   5. On a new data directory, get the base of the default shape: from another data directory, or by booting it.
 *   6. Listen for requests. Build the other images and boot bases in the background.
 *
 * Stopping leaves every sandbox running, so a restart of Warren pauses none of them. Order of events:
 *
 *   1. Everything that builds, boots or warms something is aborted, the start itself included.
 *   2. The listener closes, which aborts creates. Other operations may end.
 *   3. VMMs in the pool and on standby are stopped. The launcher exits, so that no further program is started.
 *   4. Whatever no sandbox needs is removed, also what the earlier steps did not stop in time. If there is no sandbox,
 *      that includes the network, and nothing is left on the machine.
 *
 * The exit code is 0 only if all of that was done. Otherwise `warren start` cleans up (clean-up/main.ts).
 */
import { chmod, chown, mkdir, rm } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import path from 'node:path'
import { ConfigError } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { createLog, type Log, logFormat } from '@warren/kit/log'
import { onStopSignal, StopStack } from '@warren/kit/stop'
import { VERSION } from '@warren/kit/version'
import { warrenCommand } from '@warren/kit/warren-command'
import { createActivity } from './activity.ts'
import { createHostApp } from './app.ts'
import { pruneBases } from './bases/prune.ts'
import { Builds } from './builds/builds.ts'
import { type CgroupOptions, type Cgroups, openCgroups } from './cgroups/cgroups.ts'
import { findDisk } from './cgroups/io.ts'
import { findCgroupLayout } from './cgroups/layout.ts'
import { chooseNetwork } from './choose-network.ts'
import { type Config, readHostConfig } from './config.ts'
import type { Deps } from './deps.ts'
import { createDiskGuard } from './disk/guard.ts'
import { openVolume } from './disk/volume.ts'
import { readOperatorSettings } from './guest/operator-settings.ts'
import { GUEST_PROGRAMS } from './images/guest-programs.ts'
import { openImageStore } from './images/store.ts'
import { openTemplateImages, withTemplateImages } from './images/template-images.ts'
import { createLimiter } from './limiter.ts'
import { createSampler } from './metrics/open.ts'
import { Rings } from './metrics/rings.ts'
import type { Network } from './net/open.ts'
import { createMetrics, measureProcess } from './observe/metrics.ts'
import { createPool } from './pool/pool.ts'
import { prepareAll, prepareFirstBase } from './prepare.ts'
import { pruneImages } from './prune-images.ts'
import { removeLeftovers } from './remove-leftovers.ts'
import { openSnapshotStore } from './snapshots/store.ts'
import { startWorkerPool } from './snapshots/worker-pool.ts'
import { createStandby } from './standby/standby.ts'
import { createCompactor } from './vmm/disk/compact.ts'
import { ensureJailRoot } from './vmm/jail/root.ts'
import { VmmLauncher } from './vmm/launcher-client.ts'
import { limitLogs } from './vmm/log.ts'
import { detectMachine } from './vmm/machine.ts'
import type { VmmRecord } from './vmm/record.ts'
import { findVmmRecord } from './vms/record.ts'
import { openRegistry } from './vms/registry.ts'
import { Vms } from './vms/vms.ts'
import { waitForAll } from './wait-for-all.ts'

/** `warren start` kills a host agent that needs longer than this plus half a second (cli/src/host-agent.ts). */
const STOP_LIMIT_MS = 5_000
/** After the death of `warren start`, which would have cleaned up what a stop within its limit leaves. */
const ORPHAN_STOP_LIMIT_MS = 60_000
/** Of it, so that nothing before it can use it up. Killing a handful of VMMs takes about 200 ms, the network as long. */
const RESERVED_MS = { vmms: 800, launcher: 700, leftovers: 1_500 }
/** The launcher stores nothing, so one that is busy is killed. */
const LAUNCHER_CLOSE_LIMIT_MS = 500
/** Above real accounts and above the ranges that container runtimes use. */
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
process.on('disconnect', () => void stop(0, ORPHAN_STOP_LIMIT_MS))
process.on('uncaughtException', (error) => die(error))
process.on('unhandledRejection', (error) => die(error))

const started = start(config, log, stack)
try {
  const { accel } = await started
  if (process.connected) process.send?.({ ready: true, socket: config.socket, accel })
  log.info({ version: VERSION, socket: config.socket }, 'host agent is ready')
} catch (error) {
  if (!stopping.signal.aborted) {
    // The parent shows the error to the user. Without a parent, it is written to the log.
    if (process.connected) process.send?.({ failed: errorText(error) })
    else log.fatal({ err: error }, 'host agent failed to start')
    await stop(1)
  }
}

async function start(config: Config, log: Log, stack: StopStack): Promise<{ accel: 'kvm' | 'tcg' }> {
  if (process.getuid?.() !== 0)
    throw new Error('the host agent must run as root: it creates networks and virtual machines')
  await startTracing(config, log, stack)
  await mkdir(config.runDir, { recursive: true, mode: 0o711 })
  await chmod(config.runDir, 0o711)
  const opened: { network?: Network; cgroups?: Cgroups } = {}
  stack.add('the network and leftover VMMs', () => stopNetwork(opened), RESERVED_MS.leftovers)
  const { signal } = stopping
  const operatorSettings = await readOperatorSettings(config)
  const { machine, why } = await detectMachine()
  log.info({ machine, why }, 'detected the machine')
  const jailRoot = await ensureJailRoot(config.cacheDir, machine.binary)

  const cachedImages = await openImageStore({ cacheDir: config.cacheDir, log })
  const templateImages = await openTemplateImages(config.dataDir, log)
  const images = withTemplateImages(cachedImages, templateImages)
  const kernel = await withProgress('guest kernel', () => images.ensureKernel(undefined, signal))
  const initramfs = await images.ensureInitramfs(kernel, GUEST_PROGRAMS)
  await withProgress(`image ${config.defaultRootfs}`, () => images.ensure(config.defaultRootfs, reportProgress, signal))
  signal.throwIfAborted()

  const layout = await findCgroupLayout()
  if (!layout) throw new Error(`no cgroups with cpu and memory controllers are mounted; see ${warrenCommand()} doctor`)
  const cgroups = await openCgroups(layout, config.instance, limitsOf(config, log))
  const launcher = new VmmLauncher(config.instance)
  launcher.on('died', (exit) => log.warn(exit, 'the VMM launcher died; the next request starts another one'))
  opened.cgroups = cgroups
  stack.add('the VMM launcher', () => launcher.close(LAUNCHER_CLOSE_LIMIT_MS), RESERVED_MS.launcher)
  // In parallel, because each starts processes. Both wait for their predecessors of a killed host agent to exit, which must
  // happen before adoption: a VMM that a predecessor started later would never be found.
  const [{ network, cidr }] = await waitForAll([
    chooseNetwork(config, log).then((chosen) => {
      opened.network = chosen.network
      return chosen
    }),
    launcher.request('ready'),
  ])
  signal.throwIfAborted()
  const metrics = createMetrics()
  measureProcess(metrics, 'netd', network.netd)
  measureProcess(metrics, 'vmm_launcher', launcher)
  openApiPortOnRequest(network)
  const volume = openVolume(config.dataDir, config.diskFloorMib)
  const deps: Deps = {
    config: { ...config, cidr },
    log,
    metrics,
    machine,
    kernel,
    initramfs,
    images,
    templateImages,
    operatorSettings,
    network,
    launcher,
    jailRoot,
    cgroups,
    volume,
    diskGuard: createDiskGuard(volume, log),
    registry: openRegistry(path.join(config.dataDir, 'vms')),
    snapshots: await openSnapshotStore(path.join(config.dataDir, 'snapshots')),
    rings: new Rings(path.join(config.dataDir, 'metrics')),
    workers: startWorkerPool(Math.max(availableParallelism(), 2)),
    pool: createPool(() => deps, config.poolMib),
    standby: createStandby(() => deps, config.standbyMib),
    compactor: createCompactor(() => deps),
    activity: createActivity(),
    uidOf: (slot) => FIRST_UID + (Number.parseInt(config.instance.slice(0, 3), 16) << 16) + (slot & 0xffff),
    stopping: signal,
    restoreLimiter: createLimiter(availableParallelism()),
    buildLimiter: createLimiter(1),
  }
  const vms = new Vms(deps)
  const builds = await Builds.open(deps, () => vms.records())
  // Before: guests that the last host agent stopped continue when they are adopted.
  void deps.diskGuard.run(signal)
  const found = await vms.adoptAll()
  await network.reap()
  network.slots.start()
  log.info(found, 'adopted the sandboxes of this host')
  // Which base a sandbox needs is not known if its record cannot be read.
  if (!vms.hasUnreadable) {
    await pruneBases(
      deps,
      listVmms(vms).map((vmm) => vmm.base),
    )
  }
  await pruneImages(deps)
  await builds.start()
  signal.throwIfAborted()

  deps.pool.start()
  stack.add('VMMs in the pool and on standby', () => stopSpareVmms(deps), RESERVED_MS.vmms)
  stack.add('records', () => deps.registry.close())
  stack.add('operations', () => vms.untilIdle())
  stack.add('builds', () => builds.stop())
  await prepareFirstBase(deps, reportProgress)
  signal.throwIfAborted()
  const sampler = createSampler(deps, vms)
  const app = createHostApp(deps, vms, builds, sampler)
  await rm(config.socket, { force: true })
  await app.listen(config.socket)
  await chown(config.socket, 0, config.socketGroup)
  await chmod(config.socket, config.socketGroup === 0 ? 0o600 : 0o660)
  stack.add('the listener', () => app.close())
  // A stop does not wait for it: a guest may take seconds to answer, and only one sample is lost.
  void sampler.run(signal)
  void limitLogs(config.dataDir, signal)
  const background = prepareAll(deps, reportProgress)
  stack.add('background work', () => background)
  return { accel: machine.accel }
}

function limitsOf({ vmmsMib, diskMibPerSecond, dataDir }: Config, log: Log): CgroupOptions {
  const disk = diskMibPerSecond > 0 ? findDisk(dataDir) : undefined
  if (diskMibPerSecond > 0 && disk === undefined) {
    log.warn({ dataDir }, 'WARREN_SANDBOX_DISK_MIB_PER_SECOND has no effect: the data directory is not on one disk')
  }
  const io = disk === undefined ? undefined : { disk, bytesPerSecond: diskMibPerSecond * 1024 ** 2 }
  return { totalBytes: vmmsMib * 1024 ** 2, io }
}

/** With `WARREN_PORT=0` the launcher knows the port of the API only after the control plane has started. */
function openApiPortOnRequest(network: Network): void {
  process.on('message', async (message: { openApiPort?: number }) => {
    const { openApiPort: port } = message
    if (port === undefined) return
    const failed = await network.openApiPort(port).then(
      () => undefined,
      (error) => errorText(error),
    )
    if (process.connected) process.send?.({ openedApiPort: port, failed })
  })
}

/** Loads OpenTelemetry only if the operator has set an endpoint. */
async function startTracing({ otlpEndpoint }: Config, log: Log, stack: StopStack): Promise<void> {
  if (otlpEndpoint === undefined) return
  const { startTracing: start } = await import('@warren/kit/tracing')
  const tracing = start('warren-host-agent', otlpEndpoint, log)
  stack.add('tracing', () => tracing.stop())
}

async function stopSpareVmms({ pool, standby, compactor }: Deps): Promise<void> {
  await waitForAll([pool.close(), standby.close(), compactor.close()])
}

async function stopNetwork({ network, cgroups }: { network?: Network; cgroups?: Cgroups }): Promise<void> {
  // First: they could create the table or another slot while everything is removed.
  await network?.guard.close()
  await network?.slots.close()
  try {
    await removeLeftovers(config, log, { netd: network?.netd, cgroups })
  } finally {
    await network?.close()
  }
}

function listVmms(vms: Vms): VmmRecord[] {
  return vms.records().flatMap((record) => findVmmRecord(record) ?? [])
}

/** The launcher shows it to the user. */
function reportProgress(text: string): void {
  if (process.connected) process.send?.({ progress: text })
  log.debug(text)
}

async function withProgress<T>(what: string, work: () => Promise<T>): Promise<T> {
  reportProgress(what)
  return work()
}

async function stop(exitCode: number, limitMs = STOP_LIMIT_MS): Promise<never> {
  stopping.abort(new Error('the host agent is stopping'))
  stack.add('the start', () => started.catch(() => {})) // Its error is reported where it is awaited.
  const failed = await stack.run(log, limitMs)
  process.exit(failed.length > 0 ? 1 : exitCode)
}

/** After an unexpected error the state in memory cannot be trusted. The next start adopts what runs. */
function die(error: unknown): never {
  log.fatal({ err: error }, 'unexpected error, exiting')
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
