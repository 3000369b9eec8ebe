/** `warren templates`: builds templates from Dockerfiles and shows them. */
import { readFile } from 'node:fs/promises'
import { text as readAll } from 'node:stream/consumers'
import { renderTable } from '@warren/kit/table'
import { warrenCommand } from '@warren/kit/warren-command'
import type { TemplateDeleteView, TemplateListView, TemplateView } from '@warren/protocol'
import { type Api, callApi, getApi } from '../api.ts'
import { followLog } from './api.ts'
import { BuildProgress } from './progress.ts'

const PAGE_ITEMS = 500

type BuildOptions = { file: string; name: string; follow?: true; cache: boolean }

export async function buildTemplate({ file, name, follow, cache }: BuildOptions): Promise<void> {
  const dockerfile = file === '-' ? await readAll(process.stdin) : await readFile(file, 'utf8')
  const api = await getApi()
  const body = { name, dockerfile, ...(cache ? {} : { no_cache: true }) }
  const { id } = await callApi<TemplateView>(api, 'POST', '/v1/templates', body)
  if (follow) return followBuild(api, id)
  print(`${id} is being built. Follow it with: ${warrenCommand()} templates logs -f ${id}`)
}

export async function listTemplates({ json }: { json?: true }): Promise<void> {
  const api = await getApi()
  const templates: TemplateView[] = []
  for (let offset = 0; ; offset += PAGE_ITEMS) {
    const page = await callApi<TemplateListView>(api, 'GET', `/v1/templates?limit=${PAGE_ITEMS}&offset=${offset}`)
    templates.push(...page.templates)
    if (page.templates.length < PAGE_ITEMS) break
  }
  if (json) return print(JSON.stringify(templates))
  const table = renderTable<TemplateView>(
    [
      { title: 'ID', cell: ({ id }) => id },
      { title: 'NAME', cell: ({ name }) => name },
      { title: 'BASE', cell: ({ base }) => base },
      { title: 'STATUS', cell: ({ status }) => status },
      { title: 'SIZE', align: 'right', cell: renderSize },
      { title: 'CREATED', cell: ({ created_at }) => created_at.replace(/\.\d+Z$/, 'Z') },
      { title: 'REASON', cell: ({ failure_reason = '' }) => failure_reason },
    ],
    templates,
  )
  process.stdout.write(table)
}

type LogOptions = { follow?: true; attempt?: string }

export async function showLog(template: string, { follow, attempt }: LogOptions): Promise<void> {
  const api = await getApi()
  const number = attempt === undefined ? undefined : parseAttempt(attempt)
  if (follow) return followBuild(api, template, number)
  await followLog(api, template, { attempt: number, onLine: ({ stream }) => process.stdout.write(stream) })
}

export async function removeTemplates(templates: string[]): Promise<void> {
  const api = await getApi()
  for (const template of templates) {
    const { id } = await callApi<TemplateDeleteView>(api, 'DELETE', `/v1/templates/${encodeURIComponent(template)}`)
    print(`Deleted ${id}.`)
  }
}

async function followBuild(api: Api, template: string, attempt?: number): Promise<void> {
  const progress = new BuildProgress(process.stdout)
  const startedAt = performance.now()
  try {
    const status = await followLog(api, template, { attempt, onLine: ({ line }) => progress.add(line) })
    if (status === 'failed') {
      progress.fail()
      throw new Error(`the build of ${template} failed`)
    }
  } finally {
    progress.close()
  }
  const view = await callApi<TemplateView>(api, 'GET', `/v1/templates/${encodeURIComponent(template)}`)
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1)
  print(
    `${view.name} is ready after ${seconds} s: ${view.id}, ${renderSize(view)}. Create sandboxes with it as rootfs.`,
  )
}

const MEGABYTE = 1_000_000

const renderSize = ({ ext4_size_bytes }: TemplateView): string =>
  ext4_size_bytes === 0 ? '' : `${Math.ceil(ext4_size_bytes / MEGABYTE)} MB`

function parseAttempt(text: string): number {
  if (!/^[1-9]\d{0,3}$/.test(text)) throw new Error(`--attempt is a number from 1, not ${text}`)
  return Number(text)
}

function print(text: string): void {
  process.stdout.write(`${text}\n`)
}
