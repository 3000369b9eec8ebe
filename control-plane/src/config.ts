/** The settings of the control plane. `npm run docs` lists them in docs/configuration.md. */

import { decimal, flag, integer, list, readConfig, text, url } from '@warren/kit/config'
import { checkAddressBlocks } from '@warren/kit/outbound/addresses'
import {
  DATA_DIR,
  DATABASE_URL,
  DEFAULT_ROOTFS,
  DISK_PRIVATE_CIDRS,
  EGRESS_PRIVATE_CIDRS,
  HOST_ID,
  HOST_SOCKET,
  INGRESS_CA_DIR,
  LISTENERS,
  LOGGING,
  MIGRATE,
  OTLP_ENDPOINT,
  REGION,
} from '@warren/kit/shared-settings'
import {
  AUDIT_RETENTION_DEFAULT_DAYS,
  BANDWIDTH_QUOTA_DEFAULT_BYTES,
  BANDWIDTH_UNMETERED,
  PROCESS_RECORDS_MAX,
  PROCESSES_LIVE_MAX,
  TEMPLATE_BUILD_TIMEOUT_MS,
} from '@warren/protocol'
import { PRICE_DECIMALS } from './credit/price.ts'
import { DEFAULT_TEMPLATE_BASES } from './templates/base.ts'
import { checkTemplateShapes } from './templates/builds/shapes.ts'

/** In credits per second. */
const PRICE_MAX = 1_000

export const SETTINGS = {
  ...LISTENERS,
  baseUrl: url('WARREN_BASE_URL', {
    defaultText: 'from WARREN_GUEST_HOST, or without virtual machines from WARREN_HOST, and WARREN_PORT',
    description: 'URL under which clients reach the API, if a proxy is in front of it. May contain a path.',
  }),
  databaseUrl: DATABASE_URL,
  migrate: MIGRATE,
  region: REGION,
  defaultRootfs: DEFAULT_ROOTFS,
  rateLimitPerMinute: integer('WARREN_RATE_LIMIT', {
    default: 1200,
    min: 0,
    max: 10_000_000,
    description: 'Requests per minute that one caller may make to each API process. `0` turns the limit off.',
  }),
  connectionsPerAddress: integer('WARREN_CONNECTIONS_PER_ADDRESS', {
    default: 4_000,
    min: 0,
    max: 1_000_000,
    description: 'Connections to each API process that one address may have open. `0` turns the limit off.',
  }),
  jsonBodySeconds: integer('WARREN_JSON_BODY_SECONDS', {
    default: 30,
    min: 1,
    max: 600,
    description: 'Time in seconds in which a JSON body must arrive.',
  }),
  mcpOrigins: list('WARREN_MCP_ORIGINS', {
    defaultText: 'only the origin of the API',
    description: 'Origins of web pages, separated by commas, that may call `/mcp` from a browser.',
  }),
  trustedProxies: list('WARREN_TRUSTED_PROXIES', {
    defaultText: 'none',
    description: 'Addresses of proxies, separated by commas, whose `X-Forwarded-For` header is trusted.',
  }),
  usersServiceUrl: url('WARREN_USERS_SERVICE_URL', {
    defaultText: 'none',
    description: 'Service that validates session tokens (`X-Auth-Token`).',
  }),
  introspectionUrl: url('WARREN_INTROSPECTION_URL', {
    defaultText: 'none',
    description: 'OAuth introspection endpoint (RFC 7662) that validates `X-Access-Token`.',
  }),
  introspectionClientId: text('WARREN_INTROSPECTION_CLIENT_ID', {
    default: '',
    defaultText: 'none',
    description: 'Client id for the introspection endpoint.',
  }),
  introspectionClientSecret: text('WARREN_INTROSPECTION_CLIENT_SECRET', {
    default: '',
    defaultText: 'none',
    description: 'Client secret for the introspection endpoint.',
  }),
  operators: list('WARREN_OPERATORS', {
    defaultText: 'none',
    description: 'Users, by id, name or external id, that are operators in addition to those marked in the database.',
  }),
  hostSocket: HOST_SOCKET,
  allowTcgTenants: flag('WARREN_ALLOW_TCG_TENANTS', {
    default: false,
    description:
      'Whether sandboxes and templates are created on a host without KVM although there are users besides the local one. ' +
      "QEMU's emulation (TCG) is no security boundary: a guest that escapes from it reaches what its QEMU process reaches.",
  }),
  serveGuests: flag('WARREN_SERVE_GUESTS', {
    default: false,
    description: 'Listen on WARREN_GUEST_HOST too. The host agent of this machine must have added that address.',
    internal: true,
  }),
  // Clients give up after 60 s, and rolling back a failed create needs some of that time.
  bootLimitSeconds: integer('WARREN_BOOT_LIMIT_SECONDS', {
    default: 45,
    min: 1,
    max: 50,
    description: 'Time in seconds after which the creation or resume of a sandbox fails.',
  }),
  execLimitSeconds: integer('WARREN_EXEC_LIMIT_SECONDS', {
    default: 3600,
    min: 1,
    max: 7 * 86_400,
    description: 'Longest run time of one exec, in seconds.',
  }),
  processesMax: integer('WARREN_PROCESSES_MAX', {
    default: PROCESSES_LIVE_MAX,
    min: 1,
    max: 10_000,
    description: 'Managed processes that may run in one sandbox at the same time.',
  }),
  processRecordsMax: integer('WARREN_PROCESS_RECORDS_MAX', {
    default: PROCESS_RECORDS_MAX,
    min: 1,
    max: 100_000,
    description: 'Managed processes that one sandbox remembers, running and exited together.',
  }),
  bandwidthQuotaBytes: integer('WARREN_BANDWIDTH_QUOTA_BYTES', {
    default: BANDWIDTH_QUOTA_DEFAULT_BYTES,
    min: BANDWIDTH_UNMETERED,
    max: Number.MAX_SAFE_INTEGER,
    description: `Outbound traffic included with a new sandbox, in bytes. \`${BANDWIDTH_UNMETERED}\` means unlimited.`,
  }),
  egressPrivateCidrs: EGRESS_PRIVATE_CIDRS,
  rechargeCreditsPerGib: integer('WARREN_RECHARGE_CREDITS_PER_GIB', {
    default: 1,
    min: 0,
    max: 1_000_000,
    description: 'Price in credits of more outbound traffic, per GiB or part of one.',
  }),
  priceVcpu: decimal('WARREN_PRICE_VCPU', {
    default: '0.00100455',
    decimals: PRICE_DECIMALS,
    max: PRICE_MAX,
    description: 'Credits per second for each vCPU of a running sandbox. Fractional shapes pay their part of one.',
  }),
  priceMemory: decimal('WARREN_PRICE_MEMORY', {
    default: '0.00032195',
    decimals: PRICE_DECIMALS,
    max: PRICE_MAX,
    description: 'Credits per second for each 1,024 MiB of memory of a running or paused sandbox.',
  }),
  priceDisk: decimal('WARREN_PRICE_DISK', {
    default: '0.0000044',
    decimals: PRICE_DECIMALS,
    max: PRICE_MAX,
    description: 'Credits per second for each 1,024 MiB of disk of a sandbox, until it is deleted.',
  }),
  chargeSeconds: integer('WARREN_CHARGE_SECONDS', {
    default: 60,
    min: 1,
    max: 3600,
    description: 'How often usage is charged, in seconds. Each charge is one entry of the ledger for each sandbox.',
  }),
  creditPause: flag('WARREN_CREDIT_PAUSE', {
    default: true,
    description: 'Pause the running sandboxes of an account that has no credit left.',
  }),
  lowCredits: integer('WARREN_LOW_CREDITS', {
    default: 50,
    min: 0,
    max: 1_000_000_000,
    description: 'The owner of an account is notified when its credit falls below this number of credits.',
  }),
  templateBases: list('WARREN_TEMPLATE_BASES', {
    default: [...DEFAULT_TEMPLATE_BASES],
    defaultText: DEFAULT_TEMPLATE_BASES.join(','),
    description: 'Images, separated by commas, that FROM in the Dockerfile of a template may name.',
  }),
  buildsPerHost: integer('WARREN_BUILDS_PER_HOST', {
    default: 2,
    min: 0,
    max: 1_000,
    description: 'Builds of templates that run on a host at the same time. Others wait. `0` lets all wait.',
  }),
  diskOvercommit: integer('WARREN_DISK_OVERCOMMIT', {
    default: 20,
    min: 1,
    max: 10_000,
    description:
      'How many times the disk space that a host has for sandboxes may be promised to them, as disks and as saved memory. Space ' +
      'is taken when they write. With `1` nothing is promised that is not there.',
  }),
  buildVcpu: integer('WARREN_BUILD_VCPU', {
    default: 2,
    min: 1,
    max: 64,
    description: 'vCPUs of the virtual machine in which a template is built.',
  }),
  buildMemMib: integer('WARREN_BUILD_MEM_MIB', {
    default: 2048,
    min: 256,
    max: 1_048_576,
    description: 'Memory of that machine in MiB. It is part of the memory for sandboxes of its host.',
  }),
  buildLimitSeconds: integer('WARREN_BUILD_LIMIT_SECONDS', {
    default: TEMPLATE_BUILD_TIMEOUT_MS / 1000,
    min: 1,
    max: 86_400,
    description: 'Time in seconds for all steps of a build. Packing the result is not included.',
  }),
  templateShapes: list('WARREN_TEMPLATE_SHAPES', {
    default: ['s-1vcpu-256mb', 's-1vcpu-1gb'],
    defaultText: 's-1vcpu-256mb,s-1vcpu-1gb',
    check: checkTemplateShapes,
    description:
      'Shapes, separated by commas, for which a template is booted ahead before it is ready. Its first sandbox of another ' +
      'shape takes longer.',
  }),
  ingressDomain: text('WARREN_INGRESS_DOMAIN', {
    default: '',
    defaultText: 'localhost and the ingress port',
    description:
      'Domain of ingress: a sandbox is reached at `<ulid>-<port>.<domain>`. Include a port if clients need one.',
  }),
  ingressCert: text('WARREN_INGRESS_CERT', {
    default: '',
    defaultText: 'signed by the local authority',
    description: 'Wildcard certificate for ingress (PEM file). It is read again when it changes.',
  }),
  ingressKey: text('WARREN_INGRESS_KEY', {
    default: '',
    defaultText: 'made by the local authority',
    description: 'Private key of that certificate (PEM file).',
  }),
  ingressRateLimitPerMinute: integer('WARREN_INGRESS_RATE_LIMIT', {
    default: 12_000,
    min: 0,
    max: 100_000_000,
    description: 'Requests per minute from one address to all sandboxes, per process. `0` turns the limit off.',
  }),
  ingressCaDir: INGRESS_CA_DIR,
  diskPrivateCidrs: DISK_PRIVATE_CIDRS,
  webhookPrivateCidrs: list('WARREN_WEBHOOK_PRIVATE_CIDRS', {
    check: checkAddressBlocks,
    defaultText: 'none; loopback for the local user of `./warren start`',
    description:
      'Private address blocks, separated by commas, to which webhooks may be sent, such as `10.20.0.0/16`. All other ' +
      'addresses that are not public are refused.',
  }),
  auditRetentionDays: integer('WARREN_AUDIT_RETENTION_DAYS', {
    default: AUDIT_RETENTION_DEFAULT_DAYS,
    min: 1,
    max: 36_500,
    description: 'Days for which the audit log is retained.',
  }),
  secretsKey: text('WARREN_SECRETS_KEY', {
    default: '',
    defaultText: 'a key in `secrets.key` in the data directory, made at the first start',
    description:
      'Key that encrypts secrets in the database: 32 bytes in hexadecimal or base64. Several, separated by commas, during a ' +
      'rotation: the new key first.',
  }),
  secretsKeyFile: text('WARREN_SECRETS_KEY_FILE', {
    default: '',
    description: 'File with that key, created at the first start.',
    internal: true,
  }),
  hostId: HOST_ID,
  dataDir: DATA_DIR,
  dataDirId: text('WARREN_DATA_DIR_ID', {
    default: '',
    description:
      'Id of the data directory of the host agent at the socket. Without it, the database is not bound to it.',
    internal: true,
  }),
  adoptDatabase: flag('WARREN_ADOPT_DATABASE', {
    default: false,
    description:
      'Whether to start although the database of DATABASE_URL belongs to another data directory. Its sandboxes and templates are ' +
      'given up.',
  }),
  localUser: flag('WARREN_LOCAL_USER', {
    default: false,
    description: 'Create the local user and its API key when the database has no user.',
    internal: true,
  }),
  localKeyFile: text('WARREN_LOCAL_KEY_FILE', {
    default: '',
    description: "File that receives the local user's API key.",
    internal: true,
  }),
  gatewayKeyFile: text('WARREN_GATEWAY_KEY_FILE', {
    default: '',
    description: "File that receives the API key of the deployment gateway's account.",
    internal: true,
  }),
  ...LOGGING,
  otlpEndpoint: OTLP_ENDPOINT,
}

export type Config = ReturnType<typeof readControlPlaneConfig>

export function readControlPlaneConfig(env: Record<string, string | undefined>) {
  return readConfig(SETTINGS, env)
}
