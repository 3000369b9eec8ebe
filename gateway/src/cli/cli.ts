/**
 * The commands of `warren gateway`. `warren` passes the URL of the gateway of the running instance, and in development the
 * chain and the wallet, in the environment; a URL that the user sets wins.
 *
 * Exit status: 0 on success, 1 when the command failed, 2 for a wrong command line.
 */

import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { readServiceFile } from '@warren/kit/confine/read-service-file'
import { spellCommand, warrenCommand } from '@warren/kit/warren-command'
import { Command, Help, InvalidArgumentError } from 'commander'
import { PRIVATE_KEY } from '../config.ts'
import { createClient, type GatewayClient } from './client.ts'
import { type DeployOptions, deployFolder } from './deploy.ts'
import { readAccount } from './key.ts'

type Env = Record<string, string | undefined>
type KeyOption = { keyFile?: string }
type Project = { id: string; name: string; status: string; url: string | null; createdAt: string }

const DEMO_SITE = path.join(import.meta.dirname, 'demo-site')
const DEMO_MAX_USD = 1
const FOLLOW_MS = 5_000

const HELP = `
The wallet's private key is read from --key-file, WARREN_GATEWAY_WALLET_KEY, or a prompt; on a development chain, its funded
wallet is used if there is none of these. WARREN_GATEWAY_URL names another gateway than that of the running instance.`

export function createGatewayCommand(env: Env = process.env): Command {
  const gateway = new Command('warren gateway')
    .description('deploy projects with a wallet')
    .showHelpAfterError()
    .configureHelp({ commandUsage: (command) => spellCommand(new Help().commandUsage(command)) })
    .addHelpText('after', HELP)
  const command = (name: string, description: string) =>
    gateway
      .command(name)
      .description(description)
      .option('--key-file <file>', 'file with the private key of the wallet')
  const openAccount = ({ keyFile }: KeyOption) =>
    readAccount(keyFile && path.resolve(env.INIT_CWD ?? '.', keyFile), env)
  const open = async (options: KeyOption) => createClient(getUrl(env), await openAccount(options))

  gateway
    .command('env')
    .description('print WARREN_GATEWAY_URL, and in development WARREN_GATEWAY_DEV_RPC and WARREN_GATEWAY_DEV_KEY')
    .action(async () => write(await renderEnv(env)))

  gateway
    .command('demo')
    .description('deploy a small site, paid on the development chain')
    .option('--name <name>', 'name of the project', 'demo')
    .action(async ({ name }: { name: string }) => {
      if (!env.WARREN_GATEWAY_DEV_KEY_FILE) throw new Error('the demo needs a gateway with a development chain')
      const options = { name, displayName: 'Demo', useCredits: true, pay: DEMO_MAX_USD }
      printLine(`Deploying ${name}`)
      write(`${await deployFolder(await open({}), DEMO_SITE, options, printLine)}\n`)
    })

  command('deploy', 'deploy a folder, and wait until it is ready')
    .argument('<folder>', 'folder of the project; .gitignore and .warrenignore are honoured')
    .requiredOption('--name <name>', 'unique name, which becomes part of the URL')
    .option('--display-name <text>', 'name to show')
    .option('--months <n>', 'months to pay for', parseInteger)
    .option('--pay <usd>', 'pay what the gateway asks, up to this many dollars', parseNumber)
    .option('--tx <hash>', 'transaction that pays for it')
    .option('--chain <name>', 'chain of the payment: arbitrum or base')
    .option('--token <name>', 'token of the payment: usdc or usdt')
    .option('--use-credits', 'share the credit with other active projects')
    .option('--port <port>', 'port on which the app listens', parseInteger)
    .option('--runtime <runtime>', 'for example node:22, python:3.12 or dockerfile')
    .option('--framework <name>', 'for example nextjs or fastapi')
    .option('--install <command>', 'install command')
    .option('--build <command>', 'build command')
    .option('--run <command>', 'run command')
    .option('--dockerfile', 'use the Dockerfile')
    .option('--env-file <file>', 'NAME=value lines for the environment of the app')
    .action(async (folder: string, given: DeployFlags & KeyOption) => {
      const options = await readDeployOptions(given, env)
      write(`${await deployFolder(await open(given), path.resolve(env.INIT_CWD ?? '.', folder), options, printLine)}\n`)
    })

  command('status', 'how far a deployment is')
    .argument('<project>', 'id of the project')
    .argument('<deployment>', 'id of the deployment')
    .action(async (project: string, deployment: string, options: KeyOption) => {
      const client = await open(options)
      const answer = await client.call<Record<string, string>>('GET', `/agent/deploy/${project}/${deployment}/status`)
      for (const [name, value] of Object.entries(answer)) write(`${name.padEnd(18)} ${value}\n`)
    })

  command('projects', 'list the projects of the wallet').action(async (options: KeyOption) => {
    const projects = await listProjects(await open(options))
    for (const { id, name, status, url } of projects)
      write(`${id}  ${status.padEnd(10)} ${name.padEnd(24)} ${url ?? '-'}\n`)
  })

  command('logs', 'print the log of a deployment')
    .argument('<project>', 'id of the project')
    .argument('<deployment>', 'id of the deployment')
    .option('--follow', 'continue until Ctrl-C')
    .action(async (project: string, deployment: string, options: KeyOption & { follow?: boolean }) => {
      const client = await open(options)
      let seq = 0
      do {
        const url = `/agent/deploy/${project}/${deployment}/logs?after=${seq}`
        for (const line of await client.lines<{ seq: number; source: string; text: string }>(url)) {
          seq = line.seq
          write(`${line.source.padEnd(7)} ${line.text}\n`)
        }
        if (options.follow) await delay(FOLLOW_MS)
      } while (options.follow)
    })

  command('rm', 'delete a project for good')
    .argument('<project>', 'id or name of the project')
    .action(async (project: string, options: KeyOption) => {
      const client = await open(options)
      const found = (await listProjects(client)).find(({ id, name }) => id === project || name === project)
      if (!found) throw new Error(`the wallet has no project ${project}`)
      await client.call('DELETE', `/agent/projects/${found.id}`)
      write(`deleted ${found.name}\n`)
    })

  command('balance', 'token balances of an address on a chain')
    .argument('[address]', 'by default that of the wallet')
    .option('--chain <name>', 'arbitrum or base', 'arbitrum')
    .action(async (address: string | undefined, options: KeyOption & { chain: string }) => {
      const of = address ?? (await openAccount(options)).address
      const url = `/agent/balance/${of}?chain=${encodeURIComponent(options.chain)}`
      const { balances } = await createClient(getUrl(env), undefined).call<Balances>('GET', url)
      for (const { symbol, balance } of balances) write(`${symbol.padEnd(5)} ${balance}\n`)
    })

  return gateway
}

type Balances = { balances: { symbol: string; balance: string }[] }
type DeployFlags = {
  name: string
  displayName?: string
  months?: number
  pay?: number
  tx?: string
  chain?: string
  token?: string
  useCredits?: boolean
  port?: number
  runtime?: string
  framework?: string
  install?: string
  build?: string
  run?: string
  dockerfile?: boolean
  envFile?: string
}

async function readDeployOptions(given: DeployFlags, env: Env): Promise<DeployOptions> {
  const { port, runtime, framework, install, build, run, dockerfile, envFile, ...rest } = given
  const runEnvs = envFile === undefined ? undefined : await readEnvFile(path.resolve(env.INIT_CWD ?? '.', envFile))
  const settings = {
    port,
    runtime,
    framework,
    installCommand: install,
    buildCommand: build,
    runCommand: run,
    hasDockerfile: dockerfile,
    runEnvs,
  }
  return { ...rest, settings }
}

async function readEnvFile(file: string): Promise<Record<string, string>> {
  const lines = (await readFile(file, 'utf8')).split('\n').map((line) => line.trim())
  return Object.fromEntries(
    lines
      .filter((line) => line !== '' && !line.startsWith('#'))
      .map((line) => {
        const at = line.indexOf('=')
        if (at < 1) throw new Error(`${file}: a line is not NAME=value`)
        return [line.slice(0, at), line.slice(at + 1)]
      }),
  )
}

const listProjects = async (client: GatewayClient): Promise<Project[]> =>
  (await client.call<{ projects: Project[] }>('GET', '/agent/projects')).projects

function getUrl({ WARREN_GATEWAY_URL: url }: Env): string {
  if (url) return url.replace(/\/+$/, '')
  throw new Error(
    `no gateway runs in this data directory; start it with ${warrenCommand()} start, or set WARREN_GATEWAY_URL`,
  )
}

async function renderEnv(env: Env): Promise<string> {
  const lines = [`WARREN_GATEWAY_URL=${getUrl(env)}`]
  if (env.WARREN_GATEWAY_DEV_RPC && env.WARREN_GATEWAY_DEV_KEY_FILE) {
    const key = (await readServiceFile(env.WARREN_GATEWAY_DEV_KEY_FILE)).trim()
    // A shell runs what this prints.
    if (!PRIVATE_KEY.test(key)) throw new Error(`${env.WARREN_GATEWAY_DEV_KEY_FILE} has no private key`)
    lines.push(`WARREN_GATEWAY_DEV_RPC=${env.WARREN_GATEWAY_DEV_RPC}`, `WARREN_GATEWAY_DEV_KEY=${key}`)
  }
  return `${lines.join('\n')}\n`
}

function parseInteger(text: string): number {
  if (!/^\d+$/.test(text)) throw new InvalidArgumentError('It must be a whole number.')
  return Number(text)
}

function parseNumber(text: string): number {
  if (!/^\d+(?:\.\d+)?$/.test(text)) throw new InvalidArgumentError('It must be a number.')
  return Number(text)
}

const write = (text: string): void => void process.stdout.write(text)
/** Progress goes to stderr, so that the last line of stdout is the URL alone. */
const printLine = (text: string): void => void process.stderr.write(`${text}\n`)
