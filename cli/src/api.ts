/**
 * The API client of `warren ssh`, `tunnel`, `sandboxes`, `disks`, `templates` and `webhooks listen`. It uses the API that WARREN_BASE_URL and WARREN_API_KEY name, or
 * the instance that runs on this data directory.
 */

import { readFile } from 'node:fs/promises'
import { warrenCommand } from '@warren/kit/warren-command'
import type { Page, SandboxView } from '@warren/protocol'
import { readInstanceConfig } from './config.ts'
import { isAlive, readInstanceFile } from './instance-file.ts'

export type Api = { baseUrl: string; key: string }

const PAGE_ITEMS = 500

/** WARREN_API_KEY alone is used for the local instance, but the local key is never sent to another address. */
export async function getApi(env: NodeJS.ProcessEnv = process.env): Promise<Api> {
  const baseUrl = env.WARREN_BASE_URL?.replace(/\/+$/, '')
  const key = env.WARREN_API_KEY
  if (baseUrl && key) return { baseUrl, key }
  const local = await getLocalApi()
  if (key) return { ...local, key }
  if (baseUrl && baseUrl !== local.baseUrl) throw new Error(`WARREN_API_KEY is not set; ${baseUrl} needs it`)
  return local
}

export async function getLocalApi(): Promise<Api> {
  const config = readInstanceConfig()
  const instance = await readInstanceFile(config)
  if (!instance?.baseUrl || !isAlive(instance)) {
    throw new Error(`Warren is not running on ${config.dataDir}; start it with ${warrenCommand()} start`)
  }
  return { baseUrl: instance.baseUrl, key: (await readFile(config.keyFile, 'utf8')).trim() }
}

/** Accepts an id or a name. Destroyed and failed sandboxes may have had the same name, so they are skipped. */
export async function getSandboxId(api: Api, sandbox: string): Promise<string> {
  if (!/^[\w-]+$/.test(sandbox)) throw new Error(`${sandbox} is neither the name nor the id of a sandbox`)
  if (sandbox.startsWith('sb-')) return sandbox
  for (let offset = 0; ; offset += PAGE_ITEMS) {
    const path = `/v1/sandboxes?limit=${PAGE_ITEMS}&offset=${offset}`
    const { data } = await callApi<Page<SandboxView>>(api, 'GET', path)
    const found = data.find(({ name, status }) => name === sandbox && status !== 'destroyed' && status !== 'failed')
    if (found) return found.id
    if (data.length < PAGE_ITEMS) throw new Error(`you have no sandbox named ${sandbox}`)
  }
}

export async function callApi<Data>(api: Api, method: string, path: string, body?: object): Promise<Data> {
  const payload = body === undefined ? {} : { body: JSON.stringify(body) }
  const response = await fetch(`${api.baseUrl}${path}`, {
    method,
    headers: { 'X-Api-Key': api.key },
    ...payload,
  }).catch((error: Error) => {
    // The message of fetch is only "fetch failed"; its cause has the reason.
    throw new Error(`cannot reach ${api.baseUrl}`, { cause: error.cause ?? error })
  })
  const text = await response.text()
  if (!response.ok) throw new Error(renderApiError(response.status, text))
  return (JSON.parse(text) as { data: Data }).data
}

/** The message in an error response of the API, or its status code if the response came from something else. */
export function renderApiError(status: number, text: string): string {
  try {
    const { message, data } = JSON.parse(text) as { message?: string; data?: Record<string, string> }
    const fields = Object.entries(data ?? {}).filter(([name]) => name !== 'code')
    return message ?? fields.map(([name, value]) => (name === 'message' ? value : `${name}: ${value}`)).join(', ')
  } catch {
    return `the API responded with status ${status}`
  }
}
