/** Settings that more than one program reads, declared once so that their defaults agree. */
import { choice, flag, integer, linkLocalAddress, list, text, url } from './config.ts'
import { checkAddressBlocks } from './outbound/addresses.ts'

const PORT = { min: 0, max: 65_535 }

export const DATA_DIR = text('WARREN_DATA_DIR', {
  default: '',
  defaultText: '.warren in the repository',
  description: 'Directory of all state: database, sandboxes, snapshots, API key, logs.',
})

export const CACHE_DIR = text('WARREN_CACHE_DIR', {
  default: '',
  defaultText: '~/.cache/warren, or warren in XDG_CACHE_HOME',
  description: 'Directory of images and guest kernels. Everything in it can be built again.',
})

export const DATABASE_DIR = text('WARREN_DATABASE_DIR', {
  default: '',
  defaultText: 'the data directory',
  description:
    'Directory of the embedded PostgreSQL, in its folder `postgres`. On another volume, sandboxes cannot take the space that it needs. ' +
    'To change it, stop Warren and move the folder.',
})

export const DATABASE_URL = text('DATABASE_URL', {
  default: '',
  defaultText: 'the embedded PostgreSQL',
  description: 'URL of another PostgreSQL server, version 16 or newer.',
})

export const SERVICE_UID = integer('WARREN_SERVICE_UID', {
  default: 1_879_048_192,
  min: 1_000,
  max: 4_294_967_278,
  description:
    'First of the user ids that Warren, started by root, gives to its own services: 16 for each data directory. No account may ' +
    'have them. In a container whose range of ids is smaller, one in that range.',
})

/** `warren start` turns it off where a separate process has applied the migrations with another role. */
export const MIGRATE = flag('WARREN_MIGRATE', {
  default: true,
  description:
    'Whether a service applies the migrations of its database when it starts. If `off`, run `node control-plane/src/db/main.ts`, ' +
    'and `node gateway/src/db/main.ts` for the gateway, with the DATABASE_URL of a role that owns the schemas.',
})

export const HOST_ID = text('WARREN_HOST_ID', {
  default: '127.0.0.1',
  description: 'Id of the host of this machine in the control plane.',
  internal: true,
})

/** Host agents set it up on the loopback interface; with virtual machines the API listens there too. */
export const GUEST_HOST = linkLocalAddress('WARREN_GUEST_HOST', {
  default: '169.254.1.1',
  description:
    'Link-local address at which sandboxes see this machine: their gateway, their DNS server and, at `WARREN_PORT`, the API. ' +
    'Change it only while no sandbox runs.',
})

export const LISTENERS = {
  host: text('WARREN_HOST', { default: '127.0.0.1', description: 'Address that the API listens on.' }),
  port: integer('WARREN_PORT', { default: 8080, ...PORT, description: 'Port that the API listens on.' }),
  guestHost: GUEST_HOST,
  metricsHost: text('WARREN_METRICS_HOST', {
    default: '127.0.0.1',
    description: 'Address that the Prometheus endpoint `/metrics` listens on.',
  }),
  metricsPort: integer('WARREN_METRICS_PORT', {
    default: 9464,
    ...PORT,
    description: 'Port that the Prometheus endpoint `/metrics` listens on.',
  }),
  ingress: flag('WARREN_INGRESS', { default: true, description: 'Serve HTTP and HTTPS to sandboxes by host name.' }),
  ingressHost: text('WARREN_INGRESS_HOST', {
    default: '',
    defaultText: 'the value of WARREN_HOST',
    description: 'Address that ingress listens on.',
  }),
  ingressPort: integer('WARREN_INGRESS_PORT', {
    default: 8443,
    ...PORT,
    description: 'Port that ingress listens on, for HTTP and HTTPS.',
  }),
}

export const GATEWAY_LISTENERS = {
  host: text('WARREN_GATEWAY_HOST', { default: '127.0.0.1', description: 'Address that the gateway listens on.' }),
  port: integer('WARREN_GATEWAY_PORT', { default: 8090, ...PORT, description: 'Port that the gateway listens on.' }),
  appsHost: text('WARREN_GATEWAY_APPS_HOST', {
    default: '',
    defaultText: 'the value of WARREN_GATEWAY_HOST',
    description: 'Address at which deployed apps are served.',
  }),
  appsPort: integer('WARREN_GATEWAY_APPS_PORT', {
    default: 8091,
    ...PORT,
    description: 'Port at which deployed apps are served, http and https.',
  }),
  metricsHost: text('WARREN_GATEWAY_METRICS_HOST', {
    default: '127.0.0.1',
    description: 'Address that the Prometheus endpoint `/metrics` of the gateway listens on.',
  }),
  metricsPort: integer('WARREN_GATEWAY_METRICS_PORT', {
    default: 9465,
    ...PORT,
    description: 'Port that the Prometheus endpoint `/metrics` of the gateway listens on.',
  }),
}

/** Whether a listener on this host is for this machine only. A name other than `localhost` may have any address. */
export const isLoopback = (host: string): boolean => /^(127\.\d+\.\d+\.\d+|::1|localhost)$/.test(host)

/**
 * `warren start` passes `ingress` in its data directory. If it is empty, the control plane keeps the authority in memory
 * only, so each start has a new one.
 */
export const INGRESS_CA_DIR = text('WARREN_INGRESS_CA_DIR', {
  default: '',
  defaultText: 'ingress in the data directory',
  description: 'Directory of the local certificate authority that signs ingress certificates.',
})

export const HOST_SOCKET = text('WARREN_HOST_SOCKET', {
  default: '',
  description: "Socket of this machine's host agent. Without it the control plane cannot create sandboxes.",
  internal: true,
})

/** The host agent enforces it; the control plane warns about rules that it does not cover. */
export const EGRESS_PRIVATE_CIDRS = list('WARREN_EGRESS_PRIVATE_CIDRS', {
  defaultText: 'none',
  description:
    'Private address blocks and networks of this machine, separated by commas, that egress rules may open, such as ' +
    '`10.20.0.0/16`. All others stay closed.',
})

/** The control plane checks stores when they are registered; the signing proxy of a host connects to them. */
export const DISK_PRIVATE_CIDRS = list('WARREN_DISK_PRIVATE_CIDRS', {
  check: checkAddressBlocks,
  defaultText: 'none; loopback for the local user of `./warren start`',
  description:
    'Private address blocks, separated by commas, in which the S3 stores of disks may be, such as `10.20.0.0/16`. All other ' +
    'addresses that are not public are refused.',
})

export const REGION = choice('WARREN_REGION', {
  default: 'eu',
  choices: ['eu', 'us'],
  description: 'Region that this installation reports: `eu` or `us`.',
})

export const DEFAULT_ROOTFS = text('WARREN_DEFAULT_ROOTFS', {
  default: 'debian:13',
  description: 'Image of a sandbox whose create request names none.',
})

export const LOGGING = {
  logLevel: choice('WARREN_LOG_LEVEL', {
    default: 'info',
    choices: ['trace', 'debug', 'info', 'warn', 'error', 'fatal'],
    defaultText: 'warn under `./warren start`, info for a program started alone',
    description: '`trace`, `debug`, `info`, `warn`, `error` or `fatal`.',
  }),
  logFormat: choice('WARREN_LOG_FORMAT', {
    default: 'auto',
    choices: ['auto', 'json', 'pretty'],
    description: '`json`, `pretty`, or `auto`: pretty on a terminal, JSON elsewhere.',
  }),
}

export const OTLP_ENDPOINT = url('OTEL_EXPORTER_OTLP_ENDPOINT', {
  defaultText: 'none',
  description: 'OpenTelemetry collector that receives traces, such as `http://127.0.0.1:4318`.',
})
