/**
 * The images that builds of templates made. They have the layout of the image cache, in the data directory: a cache can be
 * emptied, and belongs to all data directories of the machine; these exist nowhere else and belong to users.
 */
import { existsSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { type HostImage, isTemplateImage } from '@warren/protocol'
import { type Build, buildOnce, prepareFolders } from './build.ts'
import { findImage, type Image, storeRootFile } from './image.ts'
import { folderOf, type ImageCache, pathOf } from './layout.ts'
import { listImages } from './list.ts'
import { linkName, withContentLock } from './names.ts'
import { prune, removeLinkedImage } from './remove.ts'
import type { ImageStore } from './store.ts'

export const templateImagesFolder = (dataDir: string): string => path.join(dataDir, 'templates')

export type TemplateImages = Awaited<ReturnType<typeof openTemplateImages>>

/** Also removes what killed builds left behind. */
export async function openTemplateImages(dataDir: string, log: ImageCache['log']) {
  const store: ImageCache = { cacheDir: templateImagesFolder(dataDir), log }
  await prepareFolders(store)
  const find = (name: string): Promise<Image | undefined> => findImage(store, name)
  /** A failure is part of the build's record. */
  const forgetFailure = (name: string) => rm(pathOf(store, 'failed', name), { force: true })
  await prune(store, () => false)

  return {
    find,
    list: (): Promise<HostImage[]> => listImages(store),

    /** `make` returns a root file system in the folder of the build. */
    async publish(
      { name, source }: { name: string; source: string },
      make: (build: Build) => Promise<string>,
      signal: AbortSignal,
    ): Promise<Image> {
      const startedAt = Date.now()
      try {
        return await buildOnce(store, name, { signal }, noneYet, async (build) =>
          storeRootFile(store, build, { name, file: await make(build), source, startedAt }),
        )
      } catch (error) {
        await forgetFailure(name)
        throw (error as Error).cause ?? error
      }
    },

    /** Gives another name to the content of an image, if it is still here. */
    async link(name: string, digest: string, signal: AbortSignal): Promise<Image | undefined> {
      const link = (build: Build): Promise<Image | undefined> =>
        withContentLock(store, async () => {
          if (!existsSync(pathOf(store, 'roots', folderOf(digest)))) return undefined
          await linkName(store, build, 'roots', name, digest)
          return find(name)
        })
      return buildOnce<Image | undefined>(store, name, { signal }, noneYet, link).finally(() => forgetFailure(name))
    },

    /** Also succeeds if there is none. Bases have a link to the file or a copy, so sandboxes live on. */
    remove: (name: string): Promise<void> => removeLinkedImage(store, name),
  }
}

/** Changes nothing, for a program beside the host agent. */
export async function listTemplateImages(dataDir: string): Promise<HostImage[]> {
  const cacheDir = templateImagesFolder(dataDir)
  return existsSync(cacheDir) ? listImages({ cacheDir, log: { info: () => {}, warn: () => {} } }) : []
}

/** Changes nothing either. */
export const findTemplateImage = (dataDir: string, name: string): Promise<Image | undefined> =>
  findImage({ cacheDir: templateImagesFolder(dataDir), log: { info: () => {}, warn: () => {} } }, name)

/** One store for both: the name of an image tells where it is. */
export const withTemplateImages = (cached: ImageStore, templates: TemplateImages): ImageStore => ({
  ...cached,
  find: (name) => (isTemplateImage(name) ? templates.find(name) : cached.find(name)),
  list: async () => (await Promise.all([cached.list(), templates.list()])).flat(),
})

const noneYet = async (): Promise<undefined> => undefined
