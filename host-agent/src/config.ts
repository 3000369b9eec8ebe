/** The settings of the host agent. `npm run docs` lists them in docs/configuration.md. */
import { totalmem } from 'node:os'
import path from 'node:path'
import { ConfigError, flag, integer, list, readConfig, text, url } from '@warren/kit/config'
import { DISK_FLOOR } from '@warren/kit/disk-space'
import { instanceName } from '@warren/kit/instance-name'
import {
  CACHE_DIR,
  DATA_DIR,
  DEFAULT_ROOTFS,
  DISK_PRIVATE_CIDRS,
  EGRESS_PRIVATE_CIDRS,
  HOST_ID,
  HOST_SOCKET,
  LISTENERS,
  LOGGING,
  OTLP_ENDPOINT,
  REGION,
} from '@warren/kit/shared-settings'
import { findShape, SHAPES } from '@warren/protocol'

/** For a host agent that runs alone. Directly below the uids of the VMs (main.ts), above every real account. */
const EGRESS_PROXY_UID = 1_610_612_735
/** The same for the S3 proxy, directly below. */
const S3_PROXY_UID = 1_610_612_734
const PREPARED_SHAPES = ['s-1vcpu-1gb', 's-1vcpu-256mb', 's-2vcpu-2gb', 's-4vcpu-4gb']

export const SETTINGS = {
  dataDir: DATA_DIR,
  cacheDir: CACHE_DIR,
  socket: HOST_SOCKET,
  socketGroup: integer('WARREN_HOST_SOCKET_GROUP', {
    default: 0,
    min: 0,
    max: 4_294_967_294,
    description: 'Id of the group that may connect to that socket, besides root.',
    internal: true,
  }),
  hostId: HOST_ID,
  region: REGION,
  // choose-network.ts finds the free block.
  cidr: text('WARREN_SANDBOX_CIDR', {
    default: '',
    defaultText: 'a free /16 of 100.64.0.0/11',
    description: 'Address block of the sandboxes.',
  }),
  egressPrivateCidrs: EGRESS_PRIVATE_CIDRS,
  // Of the services of a data directory; `warren start` chooses them.
  egressProxyUid: integer('WARREN_EGRESS_PROXY_UID', {
    default: EGRESS_PROXY_UID,
    min: 1,
    max: 4_294_967_294,
    description: 'User id of the egress proxy.',
    internal: true,
  }),
  s3ProxyUid: integer('WARREN_S3_PROXY_UID', {
    default: S3_PROXY_UID,
    min: 1,
    max: 4_294_967_294,
    description: 'User id of the S3 proxy.',
    internal: true,
  }),
  disks: flag('WARREN_DISKS', {
    default: false,
    description:
      'Whether sandboxes of this host can mount disks. Off by default while it has the limits in docs/known-limitations.md.',
  }),
  diskPrivateCidrs: DISK_PRIVATE_CIDRS,
  sandboxFlows: integer('WARREN_SANDBOX_FLOWS', {
    default: 4_096,
    min: 16,
    max: 1_000_000,
    description: 'Connections of one sandbox that this machine tracks at the same time, UDP included.',
  }),
  sandboxNewFlowsPerSecond: integer('WARREN_SANDBOX_NEW_FLOWS_PER_SECOND', {
    default: 200,
    min: 1,
    max: 100_000,
    description: 'New connections of one sandbox per second, UDP included, with five seconds of them at once.',
  }),
  sandboxPacketsPerSecond: integer('WARREN_SANDBOX_PACKETS_PER_SECOND', {
    default: 100_000,
    min: 100,
    max: 10_000_000,
    description:
      'Packets of one sandbox per second, with a tenth of a second of them at once. A large packet that the machine splits ' +
      '(segmentation offload) counts once, unless it is split into small ones. Applies to sandboxes from their next resume on.',
  }),
  sandboxDnsPerSecond: integer('WARREN_SANDBOX_DNS_PER_SECOND', {
    default: 100,
    min: 1,
    max: 100_000,
    description:
      'DNS queries of one sandbox per second, with five seconds of them at once. More are dropped, or delayed over TCP; ' +
      'they are never answered wrongly.',
  }),
  memMib: integer('WARREN_HOST_MEM_MIB', {
    default: 0,
    min: 0,
    max: 100_000_000,
    defaultText: "the machine's memory less 2 GiB",
    description:
      'Memory in MiB that running sandboxes may reserve together. Each reserves the memory of its shape and that of its VMM.',
  }),
  poolMib: integer('WARREN_POOL_MIB', {
    default: -1,
    min: -1,
    max: 1_000_000,
    defaultText: 'a tenth of WARREN_HOST_MEM_MIB, at most 2048',
    description: 'Memory in MiB for the warm pool of VMs that wait for a create. `0` turns the pool off.',
  }),
  standbyMib: integer('WARREN_STANDBY_MIB', {
    default: -1,
    min: -1,
    max: 1_000_000,
    defaultText: 'a tenth of WARREN_HOST_MEM_MIB, at most 2048',
    description:
      'Memory in MiB for VMs of recently paused sandboxes, which make a resume within ten minutes faster. ' +
      '`0` turns standby off.',
  }),
  sharedBases: text('WARREN_SHARED_BASES', {
    default: '',
    defaultText: '`bases` in WARREN_CACHE_DIR',
    description:
      'Folder of booted bases that the data directories of this machine share, so that only the first one boots them. ' +
      '`none` shares nothing.',
  }),
  defaultRootfs: DEFAULT_ROOTFS,
  backgroundImages: list('WARREN_BACKGROUND_IMAGES', {
    defaultText: 'devbox:1',
    description: 'Images, separated by commas, that are built in the background after the start. `none` builds none.',
  }),
  prepareShapes: list('WARREN_PREPARE_SHAPES', {
    defaultText: PREPARED_SHAPES.join(', '),
    description:
      'Shapes, separated by commas, whose bases are booted before the first create, for WARREN_DEFAULT_ROOTFS and ' +
      'WARREN_BACKGROUND_IMAGES, one at a time while the machine is idle. `none` boots none.',
  }),
  diskFloorMib: DISK_FLOOR,
  diskMibPerSecond: integer('WARREN_SANDBOX_DISK_MIB_PER_SECOND', {
    default: 0,
    min: 0,
    max: 1_000_000,
    defaultText: 'no limit',
    description:
      'What one sandbox may read from the disk of the machine per second, and as much may it write, in MiB. With cgroups of ' +
      'version 1, writes are not limited.',
  }),
  buildCacheMib: integer('WARREN_BUILD_CACHE_MIB', {
    default: 10_240,
    min: 0,
    max: 100_000_000,
    description:
      'Space in MiB for steps of template builds that later builds of the same user can skip. What was not used for ' +
      'longest is removed first.',
  }),
  vmmProgram: text('WARREN_VMM_PROGRAM', {
    default: '',
    description: 'A program that is started instead of the jail, with its arguments, to measure Warren without VMs.',
    internal: true,
  }),
  prepareAtOnce: flag('WARREN_PREPARE_AT_ONCE', {
    default: false,
    description: 'Whether bases are booted although the machine is busy.',
    internal: true,
  }),
  guestCaFile: text('WARREN_GUEST_CA_FILE', {
    default: '',
    defaultText: 'none',
    description:
      'PEM file, or folder of `.crt` and `.pem` files, with certificate authorities that every guest trusts in ' +
      'addition to those of its image, for networks that intercept TLS.',
  }),
  guestHttpProxy: url('WARREN_GUEST_HTTP_PROXY', {
    defaultText: 'none',
    description:
      'URL of a proxy for http, as `http_proxy` and `HTTP_PROXY` in every guest. A proxy at a private address also ' +
      'needs WARREN_EGRESS_PRIVATE_CIDRS.',
  }),
  guestHttpsProxy: url('WARREN_GUEST_HTTPS_PROXY', {
    defaultText: 'none',
    description: 'The same for https.',
  }),
  guestNoProxy: text('WARREN_GUEST_NO_PROXY', {
    default: '',
    defaultText: 'the guest itself, WARREN_GUEST_HOST and other sandboxes',
    description: 'Destinations that guests reach without the proxy, as `no_proxy` and `NO_PROXY`.',
  }),
  // Where guests may reach the API: at GUEST_HOST, and at other addresses of the machine if it listens beyond loopback.
  apiHost: LISTENERS.host,
  apiPort: LISTENERS.port,
  guestHost: LISTENERS.guestHost,
  ...LOGGING,
  otlpEndpoint: OTLP_ENDPOINT,
}

/** Memory for the kernel, the page cache, PostgreSQL and Warren itself. */
const HOST_RESERVED_MIB = 2048

export type Config = ReturnType<typeof readHostConfig>

export function readHostConfig(env: Record<string, string | undefined>) {
  const config = readConfig(SETTINGS, env)
  const dataDir = path.resolve(config.dataDir || '.warren')
  const home = env.HOME || '/root'
  const cacheDir = config.cacheDir || path.join(env.XDG_CACHE_HOME || path.join(home, '.cache'), 'warren')
  const instance = instanceName(dataDir)
  const unreservedMib = Math.floor(totalmem() / 1024 ** 2) - HOST_RESERVED_MIB
  const memMib = config.memMib || Math.max(unreservedMib, 512)
  const tenthMib = Math.min(Math.floor(memMib / 10), 2048)
  return {
    ...config,
    dataDir,
    cacheDir,
    instance,
    socket: config.socket || path.join(dataDir, 'host.sock'),
    /** For sockets of VMs: socket paths must be short, and QEMU's unprivileged user must be able to reach them. */
    runDir: `/run/warren-${instance}`,
    sharedBases:
      config.sharedBases === 'none' ? undefined : path.resolve(config.sharedBases || path.join(cacheDir, 'bases')),
    memMib,
    /** The limit of all VMMs together, also those in the pool, on standby and of builds. */
    vmmsMib: Math.max(unreservedMib, memMib),
    poolMib: config.poolMib >= 0 ? config.poolMib : tenthMib,
    standbyMib: config.standbyMib >= 0 ? config.standbyMib : tenthMib,
    prepareShapes: readShapes(config.prepareShapes),
    backgroundImages:
      config.backgroundImages.length > 0 ? config.backgroundImages.filter((name) => name !== 'none') : ['devbox:1'],
  }
}

function readShapes(names: readonly string[]): readonly string[] {
  if (names.length === 0) return PREPARED_SHAPES
  const shapes = names.filter((name) => name !== 'none')
  const unknown = shapes.filter((name) => !findShape(name))
  if (unknown.length === 0) return shapes
  const known = SHAPES.map(({ id }) => id).join(', ')
  throw new ConfigError(`WARREN_PREPARE_SHAPES names unknown shapes: ${unknown.join(', ')}; known are ${known}`)
}
