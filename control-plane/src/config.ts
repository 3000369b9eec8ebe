/** Every setting of the control plane. The README's table lists them for people. */
import { choice, flag, integer, list, readConfig, text, url } from '@warren/kit/config'
import {
  BANDWIDTH_QUOTA_DEFAULT_BYTES,
  BANDWIDTH_UNMETERED,
  PROCESS_RECORDS_MAX,
  PROCESSES_LIVE_MAX,
} from '@warren/protocol'

const PORT = { min: 0, max: 65_535 }

const SETTINGS = {
  host: text('WARREN_HOST', '127.0.0.1'),
  port: integer('WARREN_PORT', 8080, PORT),
  /** What clients call it, when a proxy stands in front; may carry a path prefix. */
  baseUrl: url('WARREN_BASE_URL'),
  metricsHost: text('WARREN_METRICS_HOST', '127.0.0.1'),
  metricsPort: integer('WARREN_METRICS_PORT', 9464, PORT),
  databaseUrl: text('DATABASE_URL', ''),
  region: choice('WARREN_REGION', 'eu', ['eu', 'us']),
  defaultRootfs: text('WARREN_DEFAULT_ROOTFS', 'debian:13'),
  /** 0 turns it off. */
  rateLimitPerMinute: integer('WARREN_RATE_LIMIT', 1200, { min: 0, max: 10_000_000 }),
  trustedProxies: list('WARREN_TRUSTED_PROXIES'),
  usersServiceUrl: url('WARREN_USERS_SERVICE_URL'),
  introspectionUrl: url('WARREN_INTROSPECTION_URL'),
  introspectionClientId: text('WARREN_INTROSPECTION_CLIENT_ID', ''),
  introspectionClientSecret: text('WARREN_INTROSPECTION_CLIENT_SECRET', ''),
  /** Users that are operators, by id, name or external id, in addition to those flagged in the database. */
  operators: list('WARREN_OPERATORS'),
  /** Where the host agent of this machine listens; without one there is nowhere to create a sandbox. */
  hostSocket: text('WARREN_HOST_SOCKET', ''),
  /** Clients give up at 60 s, and taking back a create that failed needs its part (wire 1.4). */
  bootLimitSeconds: integer('WARREN_BOOT_LIMIT_SECONDS', 45, { min: 1, max: 50 }),
  execLimitSeconds: integer('WARREN_EXEC_LIMIT_SECONDS', 3600, { min: 1, max: 7 * 86_400 }),
  processesMax: integer('WARREN_PROCESSES_MAX', PROCESSES_LIVE_MAX, { min: 1, max: 10_000 }),
  processRecordsMax: integer('WARREN_PROCESS_RECORDS_MAX', PROCESS_RECORDS_MAX, { min: 1, max: 100_000 }),
  bandwidthQuotaBytes: integer('WARREN_BANDWIDTH_QUOTA_BYTES', BANDWIDTH_QUOTA_DEFAULT_BYTES, {
    min: BANDWIDTH_UNMETERED,
    max: Number.MAX_SAFE_INTEGER,
  }),
  rechargeCreditsPerGib: integer('WARREN_RECHARGE_CREDITS_PER_GIB', 1, { min: 0, max: 1_000_000 }),
  ingress: flag('WARREN_INGRESS', true),
  /** With a port where clients need one; empty: `localhost` and the port it listens on. */
  ingressDomain: text('WARREN_INGRESS_DOMAIN', ''),
  /** Empty: where the API listens. */
  ingressHost: text('WARREN_INGRESS_HOST', ''),
  ingressPort: integer('WARREN_INGRESS_PORT', 8443, PORT),
  /** A wildcard certificate and its key; without them a local authority is made in the folder. */
  ingressCert: text('WARREN_INGRESS_CERT', ''),
  ingressKey: text('WARREN_INGRESS_KEY', ''),
  /** Requests of one address, to all sandboxes together; 0 turns it off. */
  ingressRateLimitPerMinute: integer('WARREN_INGRESS_RATE_LIMIT', 12_000, { min: 0, max: 100_000_000 }),
  ingressCaDir: text('WARREN_INGRESS_CA_DIR', ''),
  /** Make the local user and its key when there is no user at all. */
  localUser: flag('WARREN_LOCAL_USER', false),
  localKeyFile: text('WARREN_LOCAL_KEY_FILE', ''),
  logLevel: choice('WARREN_LOG_LEVEL', 'info', ['trace', 'debug', 'info', 'warn', 'error', 'fatal']),
  logFormat: choice('WARREN_LOG_FORMAT', 'auto', ['auto', 'json', 'pretty']),
  otlpEndpoint: url('OTEL_EXPORTER_OTLP_ENDPOINT'),
}

export type Config = ReturnType<typeof readControlPlaneConfig>

export function readControlPlaneConfig(env: Record<string, string | undefined>) {
  return readConfig(SETTINGS, env)
}
