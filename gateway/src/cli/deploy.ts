/** `warren gateway deploy`: packs a folder, deploys it, pays if it may, and follows it until it is ready or has failed. */
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { AnswerError, type GatewayClient, Unreachable } from './client.ts'
import { readFolder } from './folder.ts'
import { describeTransfer, signPayment } from './pay.ts'
import { renderZip } from './zip.ts'

export type DeployOptions = {
  name: string
  displayName?: string
  months?: number
  chain?: string
  token?: string
  tx?: string
  useCredits?: boolean
  /** Dollars. */
  pay?: number
  settings?: Record<string, unknown>
}
export type Deployed = { projectId: string; deploymentId: string; message: string }
type Status = { status: string; deployment_status?: string; endpoint?: string; reason?: string }
type Line = { seq: number; source: string; text: string }

const POLL_MS = 1_000
/** The server limits clients to 30 requests per minute; a poll is two. */
const POLL_SLOW_MS = 5_000
const FAST_POLLS = 5
/** A gateway that is restarted answers again within seconds. */
const RESTART_LIMIT_MS = 60_000

export async function deployFolder(
  client: GatewayClient,
  folder: string,
  options: DeployOptions,
  print: (text: string) => void,
): Promise<string> {
  const { files, skipped } = await readFolder(path.resolve(folder))
  if (files.length === 0) throw new Error(`${folder} has no files to deploy`)
  for (const name of skipped) print(`  left out: ${name} is neither a file nor a folder`)
  const data = renderZip(files)
  const count = files.length === 1 ? '1 file' : `${files.length} files`
  print(`  ${count}, ${Math.ceil(data.length / 1024)} KiB packed`)
  const { name, displayName, months, settings = {} } = options
  const body = {
    uniqueName: name,
    displayName: displayName ?? name,
    ...(months === undefined ? {} : { months }),
    settings,
    upload: { type: 'zip', data: data.toString('base64') },
  }
  const deployed = await send(client, body, options, print)
  print(`  ${deployed.message}`)
  print(`  project ${deployed.projectId}, deployment ${deployed.deploymentId}`)
  return follow(client, deployed, print)
}

async function send(
  client: GatewayClient,
  body: object,
  { chain, token, tx, useCredits, pay }: DeployOptions,
  print: (text: string) => void,
): Promise<Deployed> {
  const headers = {
    ...(chain === undefined ? {} : { 'X-Payment-Chain': chain }),
    ...(token === undefined ? {} : { 'X-Payment-Token': token }),
    ...(tx === undefined ? {} : { 'X-Payment-Tx': tx }),
    ...(useCredits ? { 'X-Use-Existing-Credits': 'true' } : {}),
  }
  try {
    return await client.call<Deployed>('POST', '/agent/deploy', body, headers)
  } catch (error) {
    if (!(error instanceof AnswerError) || error.status !== 402 || tx !== undefined) throw error
    const usd = Number(error.body.amount_usd)
    if (pay === undefined) throw new Error(describeTransfer(error, `$${usd} to pay (--pay ${Math.ceil(usd)} pays it)`))
    const payment = await signPayment(client.account!, error, pay)
    print(`  paying $${usd} on ${error.body.payment_chain}`)
    return client.call<Deployed>('POST', '/agent/deploy', body, { ...headers, ...payment })
  }
}

/** Prints the log as it grows. Returns the URL, or throws with the reason. */
async function follow(client: GatewayClient, deployed: Deployed, print: (text: string) => void): Promise<string> {
  const url = `/agent/deploy/${deployed.projectId}/${deployed.deploymentId}`
  let [seq, shown] = [0, '']
  for (let poll = 0; ; poll++) {
    const status = await retry(() => client.call<Status>('GET', `${url}/status`))
    for (const line of await retry(() => client.lines<Line>(`${url}/logs?after=${seq}`))) {
      seq = line.seq
      print(`  ${line.source.padEnd(7)} ${line.text}`)
    }
    const current = status.deployment_status ?? status.status
    if (current !== shown) print(`  ${current}`)
    shown = current
    if (status.status === 'ready') return status.endpoint!
    if (status.status === 'failed') throw new Error(`the deployment failed: ${status.reason}`)
    await delay(poll < FAST_POLLS ? POLL_MS : POLL_SLOW_MS)
  }
}

/** Reads only. The deployment continues while the gateway restarts, and when this client is too fast. */
async function retry<Result>(work: () => Promise<Result>): Promise<Result> {
  const deadline = Date.now() + RESTART_LIMIT_MS
  for (;;) {
    try {
      return await work()
    } catch (error) {
      if (error instanceof Unreachable && Date.now() < deadline) await delay(POLL_MS)
      else if (error instanceof AnswerError && error.status === 429) {
        await delay(1_000 * Number(error.headers.get('retry-after') ?? 1))
      } else throw error
    }
  }
}
