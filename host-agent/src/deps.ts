/** What every function of the host agent gets as its first argument; built once in main.ts. Types only. */
import type { Log } from '@warren/kit/log'
import type { Activity } from './activity.ts'
import type { Cgroups } from './cgroups/cgroups.ts'
import type { Config } from './config.ts'
import type { DiskGuard } from './disk/guard.ts'
import type { Volume } from './disk/volume.ts'
import type { OperatorSettings } from './guest/operator-settings.ts'
import type { ImageStore, Initramfs, Kernel } from './images/store.ts'
import type { TemplateImages } from './images/template-images.ts'
import type { Limiter } from './limiter.ts'
import type { Rings } from './metrics/rings.ts'
import type { Network } from './net/open.ts'
import type { Metrics } from './observe/metrics.ts'
import type { Pool } from './pool/pool.ts'
import type { SnapshotStore } from './snapshots/store.ts'
import type { WorkerPool } from './snapshots/worker-pool.ts'
import type { Standby } from './standby/standby.ts'
import type { Machine } from './vmm/args.ts'
import type { Compactor } from './vmm/disk/compact.ts'
import type { JailRoot } from './vmm/jail/root.ts'
import type { VmmLauncher } from './vmm/launcher-client.ts'
import type { Registry } from './vms/registry.ts'

export type Deps = {
  config: Config
  log: Log
  metrics: Metrics
  machine: Machine
  kernel: Kernel
  initramfs: Initramfs
  /** Finds and lists images of templates too. */
  images: ImageStore
  templateImages: TemplateImages
  operatorSettings: OperatorSettings
  network: Network
  launcher: VmmLauncher
  jailRoot: JailRoot
  cgroups: Cgroups
  /** The disk of the data directory. */
  volume: Volume
  diskGuard: DiskGuard
  registry: Registry
  snapshots: SnapshotStore
  /** Samples of what each sandbox used in the last hour. */
  rings: Rings
  /** Threads that read and write memory and large files. */
  workers: WorkerPool
  pool: Pool
  standby: Standby
  compactor: Compactor
  activity: Activity
  /** A separate user id per slot, so that one QEMU process cannot touch another. */
  uidOf(slot: number): number
  /** Aborted when the host agent stops, to end background work. */
  stopping: AbortSignal
  /** For starting VMMs that a request waits for. */
  restoreLimiter: Limiter
  /** For building bases. */
  buildLimiter: Limiter
}
