/** The settings of the gateway. `npm run docs` lists them in docs/configuration.md. */
import { ConfigError, choice, flag, integer, list, readConfig, text, url } from '@warren/kit/config'
import { DISK_FLOOR } from '@warren/kit/disk-space'
import { DATABASE_URL, GATEWAY_LISTENERS, isLoopback, LOGGING, MIGRATE } from '@warren/kit/shared-settings'

const FINALITY = ['latest', 'safe', 'finalized'] as const
export type Finality = (typeof FINALITY)[number]

const finality = (name: string, chain: string) =>
  choice(name, {
    default: 'latest',
    choices: FINALITY,
    description:
      `Block that a payment on ${chain} must have reached: \`latest\`, \`safe\` or \`finalized\`. ` +
      'With `latest`, payments are read again until they are safe.',
  })

const rpc = (name: string, chain: string) =>
  list(name, {
    defaultText: 'none',
    description: `JSON-RPC endpoints of ${chain}, separated by commas. The next one is used when one fails.`,
  })

export const SETTINGS = {
  ...GATEWAY_LISTENERS,
  development: flag('WARREN_GATEWAY_DEVELOPMENT', {
    default: false,
    description: 'The chains are the development chain of this machine.',
    internal: true,
  }),
  baseUrl: url('WARREN_GATEWAY_BASE_URL', {
    defaultText: 'from WARREN_GATEWAY_HOST and WARREN_GATEWAY_PORT',
    description:
      'URL under which clients reach the gateway. Required, with https, unless the gateway listens on a loopback address: ' +
      'signatures cover neither path nor body.',
  }),
  databaseUrl: DATABASE_URL,
  migrate: MIGRATE,
  diskFloorMib: DISK_FLOOR,
  dataDir: text('WARREN_GATEWAY_DATA_DIR', {
    default: '',
    defaultText: 'gateway in the data directory',
    description: 'Directory of uploaded projects and of the key that encrypts their environment variables.',
  }),
  payTo: text('WARREN_GATEWAY_PAY_TO', {
    default: '',
    defaultText: 'none',
    description: 'Address that receives payments, the same on all chains.',
  }),
  payToSince: text('WARREN_GATEWAY_PAY_TO_SINCE', {
    default: '',
    defaultText: 'the first start with that address',
    description: 'Time (RFC 3339) from which transfers to that address count as payments.',
  }),
  rpcArbitrum: rpc('WARREN_GATEWAY_RPC_ARBITRUM', 'arbitrum'),
  rpcBase: rpc('WARREN_GATEWAY_RPC_BASE', 'base'),
  finalityArbitrum: finality('WARREN_GATEWAY_FINALITY_ARBITRUM', 'arbitrum'),
  finalityBase: finality('WARREN_GATEWAY_FINALITY_BASE', 'base'),
  monthlyRateMicroUsd: integer('WARREN_GATEWAY_MONTHLY_RATE_MICRO_USD', {
    default: 500_000,
    min: 0,
    max: 1_000_000_000_000,
    description: 'Price of one project for one month, in millionths of a dollar. The lowest price asked is $0.50.',
  }),
  quoteMinutes: integer('WARREN_GATEWAY_QUOTE_MINUTES', {
    default: 30,
    min: 1,
    max: 1440,
    description: 'Minutes for which a price that was asked stays valid.',
  }),
  rateLimitPerMinute: integer('WARREN_GATEWAY_RATE_LIMIT', {
    default: 30,
    min: 0,
    max: 1_000_000,
    description: 'Requests per minute of one wallet, and of one address for each wallet it names. `0` turns it off.',
  }),
  addressRateLimitPerMinute: integer('WARREN_GATEWAY_ADDRESS_RATE_LIMIT', {
    default: 300,
    min: 0,
    max: 1_000_000,
    description: 'Requests per minute of one client address, whatever wallets it names. `0` turns it off.',
  }),
  trustedProxies: list('WARREN_GATEWAY_TRUSTED_PROXIES', {
    defaultText: 'none',
    description: 'Addresses of proxies, separated by commas, whose `X-Forwarded-For` header is trusted.',
  }),
  contractWallets: flag('WARREN_GATEWAY_CONTRACT_WALLETS', {
    default: false,
    description: 'Accept signatures of contract wallets (EIP-1271). Each costs a call to a chain node.',
  }),
  projectsMax: integer('WARREN_GATEWAY_PROJECTS_MAX', {
    default: 10,
    min: 1,
    max: 100_000,
    description: 'Projects that one wallet may have.',
  }),
  deploysPerDay: integer('WARREN_GATEWAY_DEPLOYS_PER_DAY', {
    default: 30,
    min: 1,
    max: 100_000,
    description: 'Deployments that one wallet may start in 24 hours.',
  }),
  reservedNames: list('WARREN_GATEWAY_RESERVED_NAMES', {
    defaultText: 'none',
    description: 'Names that no project may have, in addition to www, api, admin, gateway and health.',
  }),
  bodyMaxBytes: integer('WARREN_GATEWAY_BODY_MAX_BYTES', {
    default: 50_000_000,
    min: 1_000,
    max: 500_000_000,
    description: 'Largest body of a deploy request in bytes, base64 included.',
  }),
  expandedMaxBytes: integer('WARREN_GATEWAY_EXPANDED_MAX_BYTES', {
    default: 100 * 1024 * 1024,
    min: 1_000,
    max: 1024 ** 3,
    description: 'Largest sum of the files of an upload in bytes.',
  }),
  fileMaxBytes: integer('WARREN_GATEWAY_FILE_MAX_BYTES', {
    default: 25_000_000,
    min: 1_000,
    max: 1024 ** 3,
    description: 'Largest file of an upload in bytes.',
  }),
  entriesMax: integer('WARREN_GATEWAY_ENTRIES_MAX', {
    default: 10_000,
    min: 1,
    max: 1_000_000,
    description: 'Most files and directories of an upload.',
  }),
  settlerKey: text('WARREN_GATEWAY_SETTLER_KEY', {
    default: '',
    defaultText: 'read from WARREN_GATEWAY_SETTLER_KEY_FILE',
    description:
      'Private key (0x and 64 hexadecimal digits) of the account that brings payments by x402 and MPP to the chains. It ' +
      'needs a little of the native coin of each. Without a key there are no such offers.',
  }),
  settlerKeyFile: text('WARREN_GATEWAY_SETTLER_KEY_FILE', {
    default: '',
    defaultText: 'none',
    description: 'File with that private key, if it is not set directly.',
  }),
  controlPlaneUrl: url('WARREN_GATEWAY_CONTROL_PLANE_URL', {
    defaultText: 'the control plane of the same `./warren start`',
    description: 'URL of the API in which sandboxes are created.',
  }),
  apiKey: text('WARREN_GATEWAY_API_KEY', {
    default: '',
    defaultText: 'read from WARREN_GATEWAY_KEY_FILE',
    description:
      'API key with which the gateway creates sandboxes. Its user should have the plan `internal` ' +
      '(`./warren admin user create gateway --plan internal`).',
  }),
  keyFile: text('WARREN_GATEWAY_KEY_FILE', {
    default: '',
    defaultText: 'gateway.key in the data directory',
    description: 'File with that API key, if it is not set directly.',
  }),
  appsDomain: text('WARREN_GATEWAY_APPS_DOMAIN', {
    default: '',
    defaultText: 'apps.localhost and the port',
    description:
      'Domain of deployed apps, which are at `https://<uniqueName>.<domain>`, with a port if clients need one. ' +
      'All names below it must lead to this gateway.',
  }),
  appsCert: text('WARREN_GATEWAY_APPS_CERT', {
    default: '',
    defaultText: 'a certificate of the local authority',
    description: 'PEM file with a certificate for all names below that domain. Read again when it changes.',
  }),
  appsKey: text('WARREN_GATEWAY_APPS_KEY', {
    default: '',
    description: 'PEM file with the private key of that certificate.',
  }),
  appsCaDir: text('WARREN_GATEWAY_APPS_CA_DIR', {
    default: '',
    defaultText: 'ca in the directory of the gateway',
    description: 'Directory of the local certificate authority for apps.',
  }),
  appsRateLimitPerMinute: integer('WARREN_GATEWAY_APPS_RATE_LIMIT', {
    default: 6_000,
    min: 0,
    max: 10_000_000,
    description: 'Requests per minute to apps from one address. `0` turns it off.',
  }),
  images: list('WARREN_GATEWAY_IMAGES', {
    defaultText: 'none',
    description: 'Images for runtimes, separated by commas: `node:22=my-node:1`. Others run on the standard image.',
  }),
  standardImage: text('WARREN_GATEWAY_STANDARD_IMAGE', {
    default: 'devbox:1',
    description: 'Image of builds and apps whose runtime is not in that list.',
  }),
  buildShape: text('WARREN_GATEWAY_BUILD_SHAPE', {
    default: 's-2vcpu-4gb',
    description: 'Shape of the sandboxes in which projects are built.',
  }),
  runShape: text('WARREN_GATEWAY_RUN_SHAPE', {
    default: 's-0.5vcpu-1gb',
    description: 'Shape of the sandboxes in which apps run.',
  }),
  buildsMax: integer('WARREN_GATEWAY_BUILDS_MAX', {
    default: 8,
    min: 1,
    max: 1_000,
    description: 'Deployments that are carried out at the same time. More wait.',
  }),
  buildsPerWallet: integer('WARREN_GATEWAY_BUILDS_PER_WALLET', {
    default: 2,
    min: 1,
    max: 1_000,
    description: 'Of them, those of one wallet.',
  }),
  buildSeconds: integer('WARREN_GATEWAY_BUILD_SECONDS', {
    default: 480,
    min: 1,
    max: 86_400,
    description: 'Seconds after which installing and building a project fails.',
  }),
  resultMaxBytes: integer('WARREN_GATEWAY_RESULT_MAX_BYTES', {
    default: 1024 ** 3,
    min: 1_000,
    max: 1024 ** 4,
    description: 'Size of the packed result of a build.',
  }),
  healthSeconds: integer('WARREN_GATEWAY_HEALTH_SECONDS', {
    default: 120,
    min: 1,
    max: 3_600,
    description: 'Seconds within which a new app must answer.',
  }),
  deploySeconds: integer('WARREN_GATEWAY_DEPLOY_SECONDS', {
    default: 600,
    min: 1,
    max: 86_400,
    description: 'Seconds after which a deployment fails, whatever it waits for.',
  }),
  drainSeconds: integer('WARREN_GATEWAY_DRAIN_SECONDS', {
    default: 30,
    min: 0,
    max: 3_600,
    description: 'Seconds for which the previous version of an app may finish its requests.',
  }),
  logMaxBytes: integer('WARREN_GATEWAY_LOG_MAX_BYTES', {
    default: 1024 * 1024,
    min: 1_000,
    max: 1024 ** 3,
    description: 'Log kept of each deployment, in bytes. The oldest lines are dropped first.',
  }),
  leaseSeconds: integer('WARREN_GATEWAY_LEASE_SECONDS', {
    default: 15,
    min: 1,
    max: 600,
    description: 'Seconds after which another process continues the deployments of one that died.',
    internal: true,
  }),
  unpaidHours: integer('WARREN_GATEWAY_UNPAID_HOURS', {
    default: 72,
    min: 1,
    max: 100_000,
    description: 'Hours without credit after which the paused projects of a wallet are deleted.',
  }),
  ...LOGGING,
}

export type Config = ReturnType<typeof readGatewayConfig>

export function readGatewayConfig(env: Record<string, string | undefined>) {
  return readConfig(SETTINGS, env)
}

export const PRIVATE_KEY = /^0x[0-9a-fA-F]{64}$/
const ADDRESS = /^0x[0-9a-fA-F]{40}$/
const HTTP_URL = /^https?:\/\//

/** What the table cannot express, such as settings that belong together. Names everything that is wrong at once. */
export function checkConfig(config: Config): void {
  const faults = [
    ...(config.databaseUrl === '' ? ['DATABASE_URL is not set'] : []),
    ...(config.dataDir === '' ? ['WARREN_GATEWAY_DATA_DIR is not set'] : []),
    ...(ADDRESS.test(config.payTo) ? [] : ['WARREN_GATEWAY_PAY_TO must be an address: 0x and 40 hexadecimal digits']),
    ...checkEndpoints('WARREN_GATEWAY_RPC_ARBITRUM', config.rpcArbitrum),
    ...checkEndpoints('WARREN_GATEWAY_RPC_BASE', config.rpcBase),
    ...(config.payToSince === '' || !Number.isNaN(Date.parse(config.payToSince))
      ? []
      : ['WARREN_GATEWAY_PAY_TO_SINCE must be a time such as 2026-11-01T00:00:00Z']),
    ...(config.settlerKey === '' || PRIVATE_KEY.test(config.settlerKey)
      ? []
      : ['WARREN_GATEWAY_SETTLER_KEY must be a private key: 0x and 64 hexadecimal digits']),
    ...(config.controlPlaneUrl === undefined ? ['WARREN_GATEWAY_CONTROL_PLANE_URL is not set'] : []),
    ...(config.apiKey === '' && config.keyFile === ''
      ? ['WARREN_GATEWAY_API_KEY or WARREN_GATEWAY_KEY_FILE must be set']
      : []),
    ...((config.appsCert === '') === (config.appsKey === '')
      ? []
      : ['WARREN_GATEWAY_APPS_CERT and WARREN_GATEWAY_APPS_KEY must be set together']),
    ...config.images
      .filter((entry) => !/^[\w.:-]+=\S+$/.test(entry))
      .map((entry) => `WARREN_GATEWAY_IMAGES: ${entry} is not runtime=image`),
    ...(!config.development || [config.host, config.appsHost || config.host].every(isLoopback)
      ? []
      : ['with a development chain, WARREN_GATEWAY_HOST and WARREN_GATEWAY_APPS_HOST must be loopback addresses']),
    ...(isLoopback(config.host) || config.baseUrl?.startsWith('https:')
      ? []
      : ['WARREN_GATEWAY_BASE_URL must be an https URL, because WARREN_GATEWAY_HOST is not a loopback address']),
  ]
  if (faults.length > 0) throw new ConfigError(`the gateway cannot start:\n  ${faults.join('\n  ')}`)
}

function checkEndpoints(name: string, urls: string[]): string[] {
  if (urls.length === 0) return [`${name} is not set`]
  return urls.every((one) => HTTP_URL.test(one) && URL.canParse(one)) ? [] : [`${name} must hold http or https URLs`]
}
